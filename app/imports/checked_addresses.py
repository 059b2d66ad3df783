"""Resolve the host of an import's URL and check that the service may connect to every address.

Public addresses are allowed, and so are the networks listed in a matching prefix. Each host name is resolved once per
connection, and the connection uses one of the checked addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from app.imports.source import Interrupted, SourceFailed
from app.imports.source_urls import Network, Prefix, SourceUrl

Address = IPv4Address | IPv6Address
_NOT_PUBLIC_4: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
    )
)  # fmt: skip
"""IPv4 networks that are not public: the registry of special-purpose addresses (RFC 6890), including its reachable
entries; multicast; and Azure's metadata address, which lies outside the registry. The metadata addresses of other
clouds are in the registry.
"""
_GLOBAL_6: Final = ip_network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ip_network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20")
)
"""Special-purpose networks inside `_GLOBAL_6`: Teredo, ORCHID and other protocols, documentation, 6to4, AS112 and the
former 6bone. An IPv4 address embedded in Teredo or 6to4 is not examined, because no import needs one.
"""
_ISATAP: Final = frozenset((b"\0\0\x5e\xfe", b"\2\0\x5e\xfe"))
"""Interface identifiers of ISATAP (RFC 5214): the address embeds an IPv4 address that is reachable from inside a site.
"""
_MAPPED: Final = ip_network("::ffff:0:0/96")
_NAT64: Final = ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet.

    An IPv4-mapped or NAT64 address is judged by the IPv4 address that it embeds.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None:
        return False
    if address in _MAPPED or address in _NAT64:
        return is_public(IPv4Address(address.packed[-4:]))
    if address not in _GLOBAL_6 or address.packed[8:12] in _ISATAP:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)


def is_allowed(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an import may connect to an address: one that is public or in one of the networks."""
    if is_public(address):
        return True
    if isinstance(address, IPv6Address) and address in _MAPPED:
        address = IPv4Address(address.packed[-4:])
    return any(address in network for network in networks)


async def checked_addresses(url: SourceUrl, prefixes: Iterable[Prefix]) -> list[Address]:
    """Resolve the URL's host, check all addresses, and return them.

    `prefixes` are the prefixes that cover the URL. Raises SourceFailed if any address is not allowed, and Interrupted
    if the name cannot be resolved.
    """
    own = url.address
    if own is not None:
        return [own]  # the prefix that covers the URL contains this same address
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError:
        raise Interrupted(f"the host {url.host} could not be resolved") from None
    networks = [network for prefix in prefixes for network in prefix.networks]
    addresses = [ip_address(place[0]) for _, _, _, _, place in found]
    for address in addresses:
        if not is_allowed(address, networks):
            raise SourceFailed(
                f"the host {url.host} has an address that is not public",
                hint="Have the operator allow the network behind the prefix in GATHERND_IMPORT_FROM, or upload the "
                "file with PUT.",
            )
    if not addresses:
        raise Interrupted(f"the host {url.host} has no address")
    return list(dict.fromkeys(addresses))
