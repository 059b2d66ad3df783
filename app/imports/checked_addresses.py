"""The addresses that an import may connect to: public ones, and those that a prefix allows.

A name is resolved once per connection; all its addresses are checked, and the connection goes to one of them.
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
"""Addresses in the registry of special-purpose addresses (RFC 6890), including reachable ones; multicast; and the
metadata address of Azure's machines, which is public elsewhere. Those of other clouds are in the registry.
"""
_GLOBAL_6: Final = ip_network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ip_network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20")
)
"""Special addresses among the global ones: Teredo, ORCHID and other protocols, documentation, 6to4, AS112 and the
former 6bone. An IPv4 address embedded in Teredo or 6to4 is not examined, because no import needs one.
"""
_ISATAP: Final = frozenset((b"\0\0\x5e\xfe", b"\2\0\x5e\xfe"))
"""Prefix of an embedded IPv4 address, which such an address leads to from within a site (RFC 5214)."""
_MAPPED: Final = ip_network("::ffff:0:0/96")
_NAT64: Final = ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet. An embedded IPv4 address decides."""
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
    """Whether an import may connect to an address: a public one, or one in the networks."""
    if is_public(address):
        return True
    if isinstance(address, IPv6Address) and address in _MAPPED:
        address = IPv4Address(address.packed[-4:])
    return any(address in network for network in networks)


async def checked_addresses(url: SourceUrl, prefixes: Iterable[Prefix]) -> list[Address]:
    """The checked addresses of the URL's host; `prefixes` are those that cover the URL.

    Raises SourceFailed for an address that is not allowed, Interrupted if the name cannot be resolved.
    """
    own = url.address
    if own is not None:
        return [own]  # the prefix that covers the URL names the address
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
