"""Build the gRPC parts from the settings: the limits on calls, and the listener.

This module imports the packages of the extra `grpc`, so a service without gRPC must not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.grpc_api.calls import Calls
from app.grpc_api.calls_under_way import FIRST_WINDOW, CallsUnderWay, divide_limit
from app.grpc_api.health_and_model_calls import call_handlers
from app.grpc_api.infer import RpcInference
from app.grpc_api.listener import GrpcListener
from app.grpc_api.unsent_answers import UnsentAnswers
from app.main import Application
from app.server.unix_sockets import UnixSocket
from app.settings import Settings

_LEAST_PENDING: Final = 96
_MOST_PENDING: Final = 3000
"""Bounds on the number of calls that have arrived but not begun; the maximum is gRPC's default. gRPC begins to refuse
some calls at a third of this number.
"""


def grpc_listener(app: Application, addresses: Sequence[str], unix_socket: UnixSocket | None = None) -> GrpcListener:
    """Return a listener that serves `app` over gRPC on `addresses` and a Unix socket."""
    settings = app.settings
    limit = int(min(settings.grpc_max_message_bytes, settings.max_body_bytes))
    budget = app.service.budget.total
    most_calls, public_calls = divide_limit(budget // limit)
    most_calls = min(most_calls, settings.max_requests)
    unread_bytes = budget // 8
    calls = Calls(
        RpcInference(app.inference),
        call_handlers(app.models, app.readiness),
        authorizer=app.authorizer,
        readiness=app.readiness,
        metrics=app.metrics,
        admission=app.admission,
        deadline=settings.deadline,
        under_way=CallsUnderWay(most_calls, public_calls, unread_bytes),
        max_message_bytes=limit,
        unsent=UnsentAnswers(settings.answer_timeout, settings.min_answer_rate),
    )
    options = _channel_options(settings, limit, most_calls + public_calls, unread_bytes)
    return GrpcListener(calls, options, addresses, unix_socket)


def _channel_options(
    settings: Settings, max_message_bytes: int, most_streams: int, unread_bytes: int
) -> list[tuple[str, Any]]:
    """Return the options of gRPC's server."""
    pending = max(_LEAST_PENDING, min(unread_bytes // FIRST_WINDOW, _MOST_PENDING))
    found: list[tuple[str, Any]] = [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # gRPC would decompress a whole message before it checks the size. `Calls` decompresses within the limit
        # instead.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_metadata_size", int(settings.max_header_bytes)),
        ("grpc.absolute_max_metadata_size", int(settings.max_header_bytes)),
        # gRPC would let a fast sender transfer megabytes of each message before anyone reads it.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.server.max_pending_requests", pending // 3),
        ("grpc.server.max_pending_requests_hard_limit", pending),
        ("grpc.max_concurrent_streams", most_streams),
        ("grpc.max_allowed_incoming_connections", settings.grpc_max_connections),
        ("grpc.server_handshake_timeout_ms", _milliseconds(settings.header_timeout)),
        ("grpc.keepalive_time_ms", _milliseconds(settings.grpc_keepalive)),
        ("grpc.keepalive_timeout_ms", _milliseconds(settings.grpc_keepalive_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Do not count pings. gRPC closes a connection that has sent too many only after the client has read its
        # responses, and until then each additional ping takes a kilobyte. If pings are not counted, gRPC stops reading
        # when too many responses are waiting.
        ("grpc.http2.max_ping_strikes", 0),
    ]
    if settings.grpc_max_connection_age is not None:
        found += [
            ("grpc.max_connection_age_ms", _milliseconds(settings.grpc_max_connection_age)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(settings.drain_timeout)),
        ]
    return found


def _milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), 2**31 - 1))
