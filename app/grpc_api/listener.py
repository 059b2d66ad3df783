"""The gRPC server of a process: its port, its options, its start and its stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from app.grpc_api.call_places import FIRST_WINDOW
from app.grpc_api.calls import Calls
from app.grpc_api.grpc_package import quiet_python
from app.server.tls import Tls
from app.server.unix_sockets import UnixSocket

logger = logging.getLogger("gathernd")

_QUIET_S: Final = 0.1
"""So long a stop waits for a call that is just coming, before it ends streams without one."""
_MOST_QUIET_S: Final = 0.5
"""So long it waits at most for a moment without calls."""
_LEAST_PENDING: Final = 96
_MOST_PENDING: Final = 3000
"""Calls that have come and not begun; the most is gRPC's default. Beyond a third of them it refuses some."""


@dataclass(frozen=True)
class GrpcOptions:
    """Limits of the server, in bytes and seconds; `max_connection_age` None is without an end.

    `addresses` are those to listen on, as in `127.0.0.1:8081`; `unix_socket` is one more, without TLS.
    """

    addresses: Sequence[str]
    unix_socket: UnixSocket | None
    max_message_bytes: int
    max_metadata_bytes: int
    most_streams: int
    unread_bytes: int
    max_connections: int
    handshake_timeout: float
    keepalive: float
    keepalive_timeout: float
    max_connection_age: float | None
    age_grace: float


class GrpcListener:
    """Listens for the calls of `calls`. To be started and stopped in the event loop that answers them."""

    def __init__(self, calls: Calls, options: GrpcOptions) -> None:
        self._calls = calls
        self._options = options
        self._server: grpc.aio.Server | None = None
        self._sweep: asyncio.Future[None] | None = None

    async def start(self, tls: Tls | None) -> None:
        """Listen; with `tls` its certificate, as it is at each handshake.

        Raises RuntimeError where that cannot be, and CannotListen for the Unix socket.
        """
        quiet_python()
        server = grpc.aio.server(options=self._channel_options())
        server.add_generic_rpc_handlers((self._calls,))
        for address in self._options.addresses:
            if tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(tls))
        unix_socket = self._options.unix_socket
        if unix_socket is not None:
            server.add_insecure_port(f"unix:{unix_socket.folder_address}")
            self._calls.unsent.unix_address = unix_socket.folder_address
        await server.start()
        self._server = server
        self._sweep = asyncio.ensure_future(self._calls.unsent.sweep())
        shown = list(self._options.addresses)
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
        if self._options.unix_socket is not None:
            self._options.unix_socket.remove()
        await self._calls.quiet(min(_MOST_QUIET_S, grace))
        stopping = asyncio.ensure_future(server.stop(grace))
        await asyncio.sleep(min(_QUIET_S, grace))
        self._calls.end_idle_streams()
        await stopping
        if self._sweep is not None:
            self._sweep.cancel()

    def _channel_options(self) -> list[tuple[str, Any]]:
        options = self._options
        pending = max(_LEAST_PENDING, min(options.unread_bytes // FIRST_WINDOW, _MOST_PENDING))
        found: list[tuple[str, Any]] = [
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            # gRPC would inflate a message whole before it looks at its size: `Calls` inflates within the limit.
            ("grpc.per_message_decompression", 0),
            ("grpc.max_metadata_size", options.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", options.max_metadata_bytes),
            # gRPC would let a fast sender bring megabytes of each message that nobody has asked for yet.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.server.max_pending_requests", pending // 3),
            ("grpc.server.max_pending_requests_hard_limit", pending),
            ("grpc.max_concurrent_streams", options.most_streams),
            ("grpc.max_allowed_incoming_connections", options.max_connections),
            ("grpc.server_handshake_timeout_ms", _milliseconds(options.handshake_timeout)),
            ("grpc.keepalive_time_ms", _milliseconds(options.keepalive)),
            ("grpc.keepalive_timeout_ms", _milliseconds(options.keepalive_timeout)),
            ("grpc.keepalive_permit_without_calls", 1),
            # Pings are not counted: a connection that sends too many is to be closed once it has read its answers, and
            # until then each further ping took a kilobyte. Uncounted, gRPC stops reading where too many answers wait.
            ("grpc.http2.max_ping_strikes", 0),
        ]
        if options.max_connection_age is not None:
            found += [
                ("grpc.max_connection_age_ms", _milliseconds(options.max_connection_age)),
                ("grpc.max_connection_age_grace_ms", _milliseconds(options.age_grace)),
            ]
        return found


def _milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), 2**31 - 1))


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
