"""The sockets that the service listens on, one for each address of its host.

They are bound before anything else is created, so that startup fails cleanly if a port is in use. They start to listen
later, so that no client connects to a service that cannot respond yet.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

BACKLOG: Final = 2048
"""Number of connections that may wait to be accepted (uvicorn's default).

Linux allows at most net.core.somaxconn, usually 4096.
"""
_TRIES: Final = 16
"""Number of attempts to find a port that is free on all addresses."""
_Address = tuple[Any, ...]
"""An address from getaddrinfo: the host, the port and, for IPv6, two more numbers."""
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of binding to an address that this machine does not have, such as ::1 if IPv6 is disabled."""
_PORT: Final = "GATHERND_PORT (--port, or PORT= for make) sets another port"
_GRPC_PORT: Final = "GATHERND_GRPC_PORT (--grpc-port) sets another port"
_HOST: Final = "GATHERND_HOST (--host, or HOST= for make) says where to listen"


class CannotListen(Exception):
    """An address cannot be bound. The message says which address, why, and what to change."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for every address of `host`. The sockets are not listening yet. Raises CannotListen.

    `::` stands for all addresses of the machine, including IPv4. With port 0, all sockets get the same free port.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host's name"
        raise CannotListen(f"cannot listen on {host!r}: {reason}; {_HOST}") from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(_TRIES):
        with suppress(_PortTakenElsewhere):
            return _bind_all(host, addresses, port)
    raise CannotListen(f"cannot listen on {host}: no port is free on all of its addresses; {_PORT}")


def reserve(host: str, port: int) -> list[socket.socket]:
    """Return sockets that reserve a port for SO_REUSEPORT listeners of this process or others of this user.

    The sockets themselves never listen. Raises CannotListen if another program has the port.
    """
    try:
        probes = bind(host, port)
    except CannotListen as problem:
        raise CannotListen(str(problem).replace(_PORT, _GRPC_PORT)) from None
    held = []
    for probe in probes:
        made = socket.socket(probe.family, socket.SOCK_STREAM)
        held.append(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if probe.family == socket.AF_INET6:
            alone = probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
        address = probe.getsockname()
        probe.close()
        try:
            made.bind(address)
        except OSError as error:
            raise CannotListen(_refusal(host, address[1], error).replace(_PORT, _GRPC_PORT)) from None
    return held


def addresses(sockets: Iterable[socket.socket]) -> list[str]:
    """Return the address and port of each socket, for example `127.0.0.1:8081` or `[::1]:8081`."""
    names = [bound.getsockname() for bound in sockets]
    return [f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}" for name in names]


def listen(sockets: Iterable[socket.socket]) -> None:
    """Let the kernel accept connections into the backlog. Raises CannotListen if another socket already listens."""
    for bound in sockets:
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            host, port, *_ = bound.getsockname()
            raise CannotListen(_refusal(host, port, error)) from None


def refuse(sockets: Iterable[socket.socket]) -> None:
    """Refuse connections, including those in the backlog, until `listen` is called again. The port stays reserved.

    Only listening sockets are shut down. On any other socket, Linux remembers the shutdown, and every connection that
    is accepted later would seem to end before its request. Unix sockets are skipped, because shutting them down would
    be permanent; their connections wait.
    """
    for bound in sockets:
        if bound.family != socket.AF_UNIX and bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            bound.shutdown(socket.SHUT_RD)


def url(scheme: str, host: str, sockets: Iterable[socket.socket]) -> str | None:
    """Return the service's URL over TCP, or None if it listens only on a Unix socket."""
    shown = f"[{host}]" if ":" in host else host
    ports = [bound.getsockname()[1] for bound in sockets if bound.family != socket.AF_UNIX]
    return f"{scheme}://{shown}:{ports[0]}" if ports else None


class _PortTakenElsewhere(Exception):
    """A port that is free on one address is in use on another."""


def _bind_all(host: str, addresses: Sequence[tuple[int, _Address]], port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    missing: OSError | None = None
    chosen = port
    try:
        for family, address in addresses:
            try:
                made = _bind_one(family, address, chosen, alone=len(addresses) == 1)
            except OSError as error:
                if error.errno in _NO_SUCH_ADDRESS:
                    missing = error
                    continue
                if error.errno == errno.EADDRINUSE and chosen != port:
                    raise _PortTakenElsewhere from None
                raise CannotListen(_refusal(host, port, error)) from None
            bound.append(made)
            chosen = made.getsockname()[1]
    except BaseException:
        for made in bound:
            made.close()
        raise
    if not bound:
        assert missing is not None
        raise CannotListen(_refusal(host, port, missing))
    return bound


def _bind_one(family: int, address: _Address, port: int, *, alone: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Set this explicitly, because the system default for IPv4 on a socket bound to :: varies.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not (alone and address[0] == "::")))
        made.bind((address[0], port, *address[2:]))
        if port:
            return made
        # `refuse` would release a port that the system chose. It does not release one that was requested explicitly.
        again = _bind_one(family, address, made.getsockname()[1], alone=alone)
    except BaseException:
        made.close()
        raise
    made.close()
    return again


def _refusal(host: str, port: int, error: OSError) -> str:
    reason = error.strerror or os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        hint = f"another program is using the port; {_PORT}"
    elif error.errno in (errno.EACCES, errno.EPERM):
        hint = f"ports below 1024 are mostly for root; {_PORT}"
    else:
        hint = _HOST
    return f"cannot listen on {host} port {port}: {reason}: {hint}"
