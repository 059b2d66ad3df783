"""gRPC from settings: the limits of its calls, and the listener of a service that serves it.

It imports the packages of the extra `grpc`, so that a service without gRPC leaves this module alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.grpc_api.calls import Calls
from app.grpc_api.calls_under_way import divided
from app.grpc_api.control import control_calls
from app.grpc_api.infer import RpcInference
from app.grpc_api.listener import GrpcListener, GrpcOptions
from app.grpc_api.unsent_answers import UnsentAnswers
from app.main import Application
from app.server.unix_sockets import UnixSocket


def grpc_listener(app: Application, addresses: Sequence[str], unix_socket: UnixSocket | None = None) -> GrpcListener:
    """What serves `app` over gRPC on `addresses` and a Unix socket."""
    settings = app.settings
    limit = int(min(settings.grpc_max_message_bytes, settings.max_body_bytes))
    budget = app.service.budget.total
    most_calls, public_calls = divided(budget // limit)
    most_calls = min(most_calls, settings.max_requests)
    unread_bytes = budget // 8
    readiness = app.readiness
    calls = Calls(
        RpcInference(app.inference),
        dict(control_calls(app.models, readiness)),
        authorizer=app.authorizer,
        readiness=readiness,
        metrics=app.metrics,
        admission=app.admission,
        deadline=settings.deadline,
        most_calls=most_calls,
        public_calls=public_calls,
        unread_bytes=unread_bytes,
        max_message_bytes=limit,
        unsent=UnsentAnswers(settings.answer_timeout, settings.min_answer_rate),
    )
    return GrpcListener(
        calls,
        GrpcOptions(
            addresses=addresses,
            unix_socket=unix_socket,
            max_message_bytes=limit,
            max_metadata_bytes=settings.max_header_bytes,
            most_streams=most_calls + public_calls,
            unread_bytes=unread_bytes,
            max_connections=settings.grpc_max_connections,
            handshake_timeout=settings.header_timeout,
            keepalive=settings.grpc_keepalive,
            keepalive_timeout=settings.grpc_keepalive_timeout,
            max_connection_age=settings.grpc_max_connection_age,
            age_grace=settings.drain_timeout,
        ),
    )
