"""The gRPC server of a process: its ports, its startup and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from app.grpc_api.calls import Calls
from app.grpc_api.grpc_package import quiet_python
from app.server.tls import Tls
from app.server.unix_sockets import UnixSocket

logger = logging.getLogger("gathernd")

_QUIET_S: Final = 0.1
"""Seconds that a shutdown waits for calls that are just arriving, before it ends idle streams."""
_MOST_QUIET_S: Final = 0.5
"""Maximum number of seconds that a shutdown waits until no calls are in flight."""


class GrpcListener:
    """Serves `calls` over gRPC. Start and stop it in the event loop that answers the calls.

    `options` are gRPC's own options, by name. `addresses` are the addresses to listen on, such as `127.0.0.1:8081`;
    `unix_socket` is an additional socket without TLS.
    """

    def __init__(
        self,
        calls: Calls,
        options: Sequence[tuple[str, Any]],
        addresses: Sequence[str],
        unix_socket: UnixSocket | None,
    ) -> None:
        self._calls = calls
        self._options = options
        self._addresses = addresses
        self._unix_socket = unix_socket
        self._server: grpc.aio.Server | None = None
        self._sweep: asyncio.Future[None] | None = None

    async def start(self, tls: Tls | None) -> None:
        """Start listening. With `tls`, each handshake uses its current certificate.

        Raises RuntimeError if an address cannot be used, and CannotListen for the Unix socket.
        """
        quiet_python()
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers((self._calls,))
        for address in self._addresses:
            if tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(tls))
        unix_socket = self._unix_socket
        if unix_socket is not None:
            server.add_insecure_port(f"unix:{unix_socket.folder_address}")
            self._calls.unsent.unix_address = unix_socket.folder_address
        await server.start()
        self._server = server
        self._sweep = asyncio.ensure_future(self._calls.unsent.sweep())
        shown = list(self._addresses)
        if unix_socket is not None:
            unix_socket.put_in_place()
            shown.append(f"unix:{unix_socket.path}")
        logger.info("gRPC on %s", ", ".join(shown))

    async def stop(self, grace: float) -> None:
        """Stop accepting calls, let running calls finish within `grace` seconds, and cancel the rest.

        When gRPC's core stops, calls that have arrived but not begun end with the status CANCELLED, which clients do
        not retry. So the core is stopped when no calls are in flight, if that happens soon.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._unix_socket is not None:
            self._unix_socket.remove()
        await self._calls.wait_until_idle(min(_MOST_QUIET_S, grace))
        stopping = asyncio.ensure_future(server.stop(grace))
        await asyncio.sleep(min(_QUIET_S, grace))
        self._calls.end_idle_streams()
        await stopping
        if self._sweep is not None:
            self._sweep.cancel()


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return credentials that use the current certificate and authorities at each handshake."""
    last = tls.pem()

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([(last.key, last.certificate)], last.client_ca)

    def fetch() -> Any:
        nonlocal last
        now = tls.pem()
        if now == last:
            return None
        last = now
        return configuration()

    asks = tls.context.verify_mode == ssl.CERT_REQUIRED
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, asks)
