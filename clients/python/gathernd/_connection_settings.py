"""Connection settings of a client: address and API key (also from the environment), TLS, timeouts, headers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from ._http1_messages import field_line
from ._retries import Retries

DEFAULT_URL: Final = "http://127.0.0.1:8080"
"""Address of a service with default settings."""
URL_VARIABLE: Final = "GATHERND_URL"
KEY_VARIABLE: Final = "GATHERND_API_KEY"
CA_VARIABLE: Final = "GATHERND_CA"
VERSION: Final = "0.1.0"

Verify = bool | str | os.PathLike[str] | ssl.SSLContext
Certificate = str | os.PathLike[str] | tuple[str, ...]

_OF_THE_CLIENT: Final = frozenset(
    (
        "accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host", "keep-alive",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-gathernd-timeout",
    )
)  # fmt: skip
"""Header fields that a caller may not set, because the client sets them."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds for connecting and for each pause in receiving or sending; None means no limit."""

    connect: float | None
    read: float | None
    write: float | None


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a service's URL. `base_path` is the prefix of all paths, "" for most services.

    If `socket_path`, the path of a Unix socket, is not "", it is used instead of host and port.
    """

    url: str
    tls: bool
    host: str
    port: int
    base_path: str
    host_field: str
    socket_path: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of a transport. If `direct` is False, the connection needs httpx, for example for a proxy."""

    address: Address
    timeouts: Timeouts
    headers: Mapping[str, str]
    retries: Retries
    direct: bool
    verify: Verify
    cert: Certificate | None

    def fields(self) -> bytes:
        """Return the header lines that all requests share."""
        shared = {"host": self.address.host_field, **self.headers}
        return b"".join(field_line(name, value) for name, value in shared.items())

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for `verify` and `cert`. True trusts certifi's authorities, as httpx does."""
        import httpx  # noqa: PLC0415  (slow to import, and plain HTTP goes without it)

        if isinstance(self.verify, ssl.SSLContext):
            if self.cert is not None:
                raise ValueError("the certificate belongs in the SSLContext that was given: context.load_cert_chain()")
            return self.verify
        if isinstance(self.verify, bool):
            context = httpx.create_ssl_context(self.verify)
        else:
            context = _trust_context(os.fspath(self.verify))
        context.set_alpn_protocols(["http/1.1"])
        if self.cert is not None:
            context.load_cert_chain(*(self.cert if isinstance(self.cert, tuple) else (self.cert,)))
        return context


def _trust_context(authorities: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities in a file or folder. Raises OSError or ValueError, with the path."""
    folder = Path(authorities).is_dir()
    try:
        return ssl.create_default_context(
            cafile=None if folder else authorities, capath=authorities if folder else None
        )
    except ssl.SSLError as error:
        raise ValueError(f"{authorities!r} contains no CA certificate (PEM): {error.reason}") from None
    except OSError as error:
        raise type(error)(error.errno, error.strerror, authorities) from None


def connection_settings(
    url: str | None,
    key: str | None,
    timeout: Any,
    retries: int | Retries,
    headers: Mapping[str, str] | None,
    verify: Verify | None,
    cert: Certificate | None,
    transport: Any,
) -> ConnectionSettings:
    """Build the settings from a client's arguments.

    `url`, `key` and `verify` default to GATHERND_URL, GATHERND_API_KEY and GATHERND_CA.

    Raises ValueError for an invalid URL.
    """
    address = parse_url(url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    key = key if key is not None else os.environ.get(KEY_VARIABLE) or None
    all_headers = {"user-agent": f"gathernd-python/{VERSION}", "accept-encoding": "identity"}
    if key is not None:
        all_headers["authorization"] = f"Bearer {key}"
    if hasattr(timeout, "connect"):
        timeouts = Timeouts(timeout.connect, timeout.read, timeout.write)
    else:
        timeouts = Timeouts(timeout, timeout, timeout)
    settings = ConnectionSettings(
        address,
        timeouts,
        all_headers | normalized_headers(headers),
        retries if isinstance(retries, Retries) else Retries(retries),
        transport is None and not _has_proxy(address),
        verify if verify is not None else os.environ.get(CA_VARIABLE) or True,
        cert,
    )
    settings.fields()  # raises for an invalid header field
    return settings


def parse_url(url: str) -> Address:
    """Split a service's URL into its parts. Raises ValueError that says what is missing."""
    parts = urlsplit(url)
    if any(sign < " " for sign in url):
        raise ValueError(f"{url!r} is not the URL of a service: it contains a control character")
    on_socket = parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/")
    if not on_socket and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(
            f"{url!r} is not the URL of a service: write http:// or https://, as in {DEFAULT_URL}, or the path of a "
            "Unix socket, as in unix:/run/gathernd.sock"
        )
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(
            f"{url!r} is not the URL of a service: leave out query, fragment and user; pass an API key as key="
        )
    if on_socket:
        return Address(url, False, "localhost", 80, "", "localhost", parts.path)
    assert parts.hostname is not None
    tls = parts.scheme == "https"
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    if not all("!" <= sign <= "~" for sign in host):
        raise ValueError(f"{url!r} has no host's name")
    default = 443 if tls else 80
    port = parts.port if parts.port is not None else default
    named = f"[{host}]" if ":" in host else host
    base_path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=-._~")
    return Address(
        f"{parts.scheme}://{named}{'' if port == default else f':{port}'}{base_path}",
        tls, host, port, base_path, named if port == default else f"{named}:{port}",
    )  # fmt: skip


def normalized_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return a caller's header fields, with names in lower case. Raises ValueError for a field that the client sets."""
    found = {name.lower(): value for name, value in (headers or {}).items()}
    if not_theirs := _OF_THE_CLIENT & found.keys():
        raise ValueError(f"the client itself sets the header field {min(not_theirs)}")
    return found


def _has_proxy(address: Address) -> bool:
    """Return True if the environment (HTTP_PROXY, NO_PROXY and so on) sets a proxy for this address."""
    if address.socket_path:
        return False
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  (slow to import)

    proxies = getproxies()
    scheme = "https" if address.tls else "http"
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(address.host)
