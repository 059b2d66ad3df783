"""The server from settings: its options, the order of its start, and one process or a supervisor of several."""

from __future__ import annotations

import logging.config
import sys
from pathlib import Path
from typing import Final, NoReturn

from app.api.error_responses import render_error
from app.api.route_table import HEALTH, path_of
from app.cluster.sharded_service import MapFile, is_ray
from app.main import Application, create_app, limits_of
from app.security.authorizer import KeyAuthorizer, make_authorizer
from app.security.host_header_check import is_loopback_name
from app.server import listening_sockets, worker_process
from app.server import serve as server
from app.server.exit_codes import NOT_AVAILABLE
from app.server.server_options import ServerOptions
from app.server.supervisor import Supervisor
from app.server.timeouts import Timeouts
from app.server.tls import Tls, TlsFiles
from app.server.worker_process import WorkerStart
from app.settings import Settings
from app.store import LocalStore, StoreRefused
from app.telemetry import logs
from app.telemetry.shared_counters import join
from app.telemetry.tracing import is_wanted

WORKER_PROGRAM: Final = """
import gc, sys
gc.disable()  # modules stay: to look through them for garbage takes a tenth of the start
from app.server_from_settings import work
gc.freeze()
gc.enable()
work(int(sys.argv[1]))
"""


def server_options(settings: Settings) -> ServerOptions:
    """The server's part of the settings."""
    tls = None
    if settings.tls_cert is not None:
        tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_key_password_file, settings.tls_client_ca)
    return ServerOptions(
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        tls=tls,
        timeouts=Timeouts(
            header=settings.header_timeout,
            body=settings.body_timeout,
            body_rate=settings.min_body_rate,
            header_bytes=settings.max_header_bytes,
            header_fields=settings.max_header_fields,
            idle=settings.keep_alive,
            answer=settings.answer_timeout,
            answer_rate=settings.min_answer_rate,
        ),
        max_connections=settings.max_connections,
        always_answered=frozenset(path.encode() for path in HEALTH),
        drain_delay=settings.drain_delay,
        drain_timeout=settings.drain_timeout,
        kept_memory=settings.memory_budget // settings.workers // 8,
        log_level=settings.log_level,
        log_format=settings.log_format,
        render_error=render_error,
        page_path=path_of("frontPage"),
        docs_path=path_of("docs"),
    )


def open_store(store: LocalStore) -> None:
    """Claim the store for this process and those that it starts; where that cannot be, say why and end with 1."""
    try:
        store.open()
    except StoreRefused as refusal:
        _end(str(refusal))
    except OSError as error:
        _end(f"the store {store.folder} cannot be used: {error.strerror}; GATHERND_STORE_DIR sets another one")


def _end(reason: str) -> NoReturn:
    sys.stderr.write(f"gathernd: {reason}\n")
    raise SystemExit(NOT_AVAILABLE) from None


def serve(settings: Settings, app: Application) -> None:
    """Serve with one process, this one.

    What can be refused is refused before anything is made: the files of TLS, then the port, then the store, for which
    this ends the process. Raises BadTls and CannotListen.
    """
    options = server_options(settings)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    tls = None if options.tls is None else Tls(*options.tls)
    listeners = listening_sockets.bind(settings.host, settings.port)
    open_store(app.store)
    server.serve(options, app, tls, listeners)


def serve_workers(settings: Settings) -> int:
    """Serve with several processes; returns the exit code.

    What can be refused is refused before anything is made: the files of TLS and keys, then the port, then the store,
    which is claimed here and used by the workers under this claim. Raises BadKeysFile, BadTls, NoTracing and
    CannotListen; ends the process where the store cannot be had.
    """
    options = server_options(settings)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    if options.tls is not None:
        Tls(*options.tls)
    is_wanted(settings.otlp_endpoint)
    if settings.cluster is not None and not is_ray(settings.cluster):
        MapFile(Path(settings.cluster))
    authorizer = make_authorizer(settings.api_keys_file, loopback=is_loopback_name(settings.host))
    listeners = listening_sockets.bind(settings.host, settings.port)
    store = LocalStore(settings.store_dir, limits_of(settings), processes=settings.workers)
    open_store(store)
    keys = authorizer if isinstance(authorizer, KeyAuthorizer) else None
    handed_on = settings.model_dump(mode="json")
    return Supervisor(options, listeners, WORKER_PROGRAM, handed_on, store.group.token, keys).run()


def work(fd: int) -> None:
    """Be a worker process; `fd` is the descriptor of its `WorkerStart`."""
    start = WorkerStart.read(fd)
    settings = Settings(**start.settings)
    counters = join(start.counters, start.slot)
    app = create_app(settings, counters, store_token=start.store_token, last_good_keys=start.keys)
    worker_process.work(start, server_options(settings), app)
