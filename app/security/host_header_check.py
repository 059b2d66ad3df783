"""Who may call: the Host and Origin rules of a service on a loopback address (DNS rebinding and CSRF).

On loopback, Host must be a loopback name or an allowed one, and an Origin that is neither is refused. Elsewhere the
same holds once GATHERND_ALLOWED_HOSTS names hosts. The origins of GATHERND_CORS_ORIGINS are allowed everywhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from app.bounded_cache import BoundedCache
from app.errors import GatherError

_REMEMBERED: Final = 1024
"""Most good values of each field that are remembered: callers use few names, and a scan must not fill the memory."""
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]+")


def is_loopback_name(host: str) -> bool:
    """Whether `host`, without a port, can only mean this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def split_host(value: str) -> str:
    """The host of a Host field, without its port; "" where it is not one."""
    if not _HOST.fullmatch(value):
        return ""
    try:
        host = urlsplit(f"//{value}")
        return host.hostname or "" if host.port is None or host.port >= 0 else ""
    except ValueError:
        return ""


class HostHeaderCheck:
    """Checks the Host and Origin of each request; values that were found good are remembered."""

    def __init__(self, host: str, allowed: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)
        self.active = bool(self._allowed) or is_loopback_name(host)
        self._hosts: BoundedCache[bytes, None] = BoundedCache(_REMEMBERED)
        self._origins: BoundedCache[bytes, None] = BoundedCache(_REMEMBERED)
        self._allowed_origins = frozenset(origin.encode() for origin in origins)

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raises forbidden for a foreign Host or Origin."""
        if not self.active:
            return
        host = headers.get(b"host")
        if host is not None and host not in self._hosts:
            if not self._is_own_name(split_host(host.decode("latin-1"))):
                raise GatherError(
                    "forbidden",
                    f"the Host {host.decode('latin-1')!r} is not a name of this service; "
                    "GATHERND_ALLOWED_HOSTS can add it",
                    hint="Call the service as localhost or 127.0.0.1, or have the operator add the name to "
                    "GATHERND_ALLOWED_HOSTS.",
                )
            self._hosts[host] = None
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._origins and origin not in self._allowed_origins:
            if not self._is_own_name(_origin_host(origin.decode("latin-1"))):
                raise GatherError(
                    "forbidden",
                    f"requests from pages of the origin {origin.decode('latin-1')!r} are refused",
                    hint="Leave out the field Origin, or have the operator add the origin to GATHERND_CORS_ORIGINS.",
                )
            self._origins[origin] = None

    def _is_own_name(self, host: str) -> bool:
        return bool(host) and (host.lower() in self._allowed or is_loopback_name(host))


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
