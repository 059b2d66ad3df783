"""The gRPC server of a process: its ports, its start and its stop."""

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
"""So long a stop waits for a call that is just coming, before it ends streams without one."""
_MOST_QUIET_S: Final = 0.5
"""So long it waits at most for a moment without calls."""


class GrpcListener:
    """Listens for the calls of `calls`. To be started and stopped in the event loop that answers them.

    `options` are gRPC's own, by their names. `addresses` are those to listen on, as in `127.0.0.1:8081`; `unix_socket`
    is one more, without TLS.
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
        """Listen; with `tls` its certificate, as it is at each handshake.

        Raises RuntimeError where that cannot be, and CannotListen for the Unix socket.
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
        """Take no more calls, let those that run finish within `grace` seconds, and cut off the rest.

        gRPC's core ends with CANCELLED what has come and not begun, and clients do not ask that again. So it is told
        in a moment without calls, if there is one soon.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._unix_socket is not None:
            self._unix_socket.remove()
        await self._calls.quiet(min(_MOST_QUIET_S, grace))
        stopping = asyncio.ensure_future(server.stop(grace))
        await asyncio.sleep(min(_QUIET_S, grace))
        self._calls.end_idle_streams()
        await stopping
        if self._sweep is not None:
            self._sweep.cancel()


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials that take the certificate and the authorities in force at each handshake."""
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
