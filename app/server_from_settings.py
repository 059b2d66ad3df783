"""Start the server from its settings: build its options, and run one process or a supervisor of several."""

from __future__ import annotations

import logging
import logging.config
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from app.api.error_responses import render_error
from app.api.route_table import HEALTH, path_of
from app.cluster.shard_map import BadShardMap
from app.grpc_api.grpc_package import NoGrpc, check_grpc
from app.main import Application, create_app, is_local, router_files
from app.security.api_keys import BadKeysFile
from app.security.authorizer import KeyAuthorizer, make_authorizer
from app.security.file_watcher import FileWatcher
from app.server import listening_sockets, worker_process
from app.server import serve as server
from app.server.exit_codes import STARTUP_FAILURE
from app.server.served_application import ServerOptions
from app.server.supervisor import Supervisor
from app.server.tls import BadTls, Tls
from app.server.unix_sockets import Permissions, UnixSocket
from app.server.worker_process import WorkerStart
from app.settings import Settings
from app.shard_from_settings import advertised_address, cluster_key_of
from app.store import LocalStore, StoreRefused
from app.telemetry import logs
from app.telemetry.shared_counters import join
from app.telemetry.tracing import NoTracing, is_wanted

logger = logging.getLogger("gathernd")

WORKER_PROGRAM: Final = """
import gc, sys
gc.disable()  # modules stay: to look through them for garbage takes a tenth of the start
from app.server_from_settings import work
gc.freeze()
gc.enable()
work(int(sys.argv[1]))
"""


def server_options(settings: Settings) -> ServerOptions:
    """Return the server's options: the settings, and what the server needs to know about the application."""
    return ServerOptions(
        settings=settings,
        always_answered=frozenset(path.encode() for path in HEALTH),
        render_error=render_error,
        page_path=path_of("frontPage"),
        docs_path=path_of("docs"),
    )


def open_store(store: LocalStore) -> None:
    """Claim the store for this process and its child processes. Raises StoreRefused."""
    try:
        store.open()
    except OSError as error:
        raise StoreRefused(
            f"the store {store.folder} cannot be used: {error.strerror}; GATHERND_STORE_DIR sets another one"
        ) from None


def serve(settings: Settings, app: Application) -> None:
    """Serve with this process alone.

    Everything that can be refused is checked before anything is created: the TLS files, then the port, then the store.
    Raises BadTls, CannotListen and StoreRefused.
    """
    options = server_options(settings)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    tls = None if options.tls is None else Tls(options.tls)
    listeners = _bind(settings)
    if app.shard is not None:
        app.shard.address = advertised_address(settings, lambda: _http_port(listeners))
    reserved = _reserve_grpc(settings, tls)
    with app.removed_at_the_end as removed_at_the_end:
        own, grpc = (_unix_socket(settings, name, removed_at_the_end) for name in ("uds", "grpc_uds"))
        if settings.serves_grpc:
            _serve_grpc(app, listening_sockets.addresses(reserved), grpc)
        open_store(app.store)
        if own is not None:
            listeners.append(own.listen())
        server.serve(options, app, tls, listeners)


def serve_workers(settings: Settings) -> int:
    """Serve with several processes. Returns the exit code.

    Everything that can be refused is checked before anything is created: the files of TLS, keys and a router, then the
    port, then the store. This process claims the store, and the workers use it under that claim. Raises BadKeysFile,
    BadShardMap, BadTls, NoTracing, CannotListen and StoreRefused.
    """
    options = server_options(settings)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    tls = None if options.tls is None else Tls(options.tls)
    is_wanted(settings.otlp_endpoint)
    watchers: list[FileWatcher[Any]] = (
        [] if settings.cluster is None or settings.shard else router_files(settings).watchers
    )
    authorizer = make_authorizer(
        settings.api_keys_file, loopback=is_local(settings), cluster_key=cluster_key_of(settings)
    )
    listeners = _bind(settings)
    reserved = _reserve_grpc(settings, tls)
    addresses = listening_sockets.addresses(reserved)
    with ExitStack() as removed_at_the_end:
        own = _unix_socket(settings, "uds", removed_at_the_end)
        store = LocalStore(settings.store_dir, settings.limits, processes=settings.workers)
        open_store(store)
        if own is not None:
            listeners.append(own.listen())
        if isinstance(authorizer, KeyAuthorizer):
            watchers.append(authorizer.watcher)
        if tls is not None:
            watchers.append(tls.watcher)
        handed_on = worker_settings(settings)
        if settings.shard:
            handed_on["advertise"] = advertised_address(settings, lambda: _http_port(listeners))
        token = store.group.token
        return Supervisor(options, listeners, WORKER_PROGRAM, handed_on, token, watchers, addresses).run()


def worker_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON, from which a worker builds identical settings.

    If HTTP is not served on a port, `host` and `port` are left out, because a setting for them would request a port.
    """
    return settings.model_dump(mode="json", exclude=None if settings.serves_tcp else {"host", "port"})


def _bind(settings: Settings) -> list[socket.socket]:
    """Bind the HTTP sockets on TCP. Raises CannotListen."""
    return listening_sockets.bind(settings.host, settings.port) if settings.serves_tcp else []


def _http_port(listeners: Sequence[socket.socket]) -> int:
    """Return the HTTP port."""
    port: int = listeners[0].getsockname()[1]
    return port


def _reserve_grpc(settings: Settings, tls: Tls | None) -> list[socket.socket]:
    """Return sockets that reserve the gRPC port.

    Raises NoGrpc, CannotListen, and BadTls for files that gRPC cannot use.
    """
    if settings.serves_grpc:
        check_grpc()
    if settings.grpc_port is None:
        return []
    if tls is not None:
        tls.pem()
    return listening_sockets.reserve(settings.host, settings.grpc_port)


def _unix_socket(settings: Settings, name: str, removed_at_the_end: ExitStack) -> UnixSocket | None:
    """Prepare the Unix socket of the `name` setting, or return None if it is unset. Raises CannotListen.

    The socket moves to its path later.
    """
    path = getattr(settings, name)
    if path is None:
        return None
    permissions = Permissions(int(settings.uds_mode, 8), settings.uds_owner)
    return removed_at_the_end.enter_context(UnixSocket(path, permissions, f"GATHERND_{name.upper()}"))


def _serve_grpc(app: Application, addresses: Sequence[str], unix_socket: UnixSocket | None = None) -> None:
    """Serve `app` over gRPC as well. `create_app` has already checked that the extra `grpc` is installed."""
    from app.grpc_from_settings import grpc_listener  # noqa: PLC0415  (the extra)

    app.further_listener = grpc_listener(app, addresses, unix_socket)


def work(fd: int) -> None:
    """Run as a worker process; `fd` is the descriptor of its `WorkerStart`.

    If files named by the settings cannot be used, logs why and exits.
    """
    start = WorkerStart.read(fd)
    settings = Settings(**start.settings)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    counters = join(start.counters, start.slot)
    try:
        app = create_app(settings, counters, store_token=start.store_token, last_good=start.last_good)
        if start.grpc_addresses:
            _serve_grpc(app, start.grpc_addresses)
        worker_process.work(start, server_options(settings), app)
    except (BadKeysFile, BadShardMap, BadTls, NoGrpc, NoTracing) as problem:
        logger.error("this worker cannot start: %s", problem)
        raise SystemExit(STARTUP_FAILURE) from None
