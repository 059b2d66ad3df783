"""Run the service with the settings of `gathernd serve`, in one process or several.

This module imports the whole service, which `gathernd serve --help` does not need.
"""

from __future__ import annotations

import typer

from app.cli.failure import failure
from app.cluster.catalogue.etcd import BadAddress
from app.cluster.shard_map import BadShardMap
from app.dispatch.gpu_discovery import allow_gpu
from app.grpc_api.grpc_package import NoGrpc
from app.kernels.gpu_interface import NoDevice
from app.main import create_app
from app.security.api_keys import BadKeysFile
from app.server.exit_codes import NOT_AVAILABLE, WRONG_SETTINGS
from app.server.listening_sockets import CannotListen
from app.server.tls import BadTls
from app.server_from_settings import serve, serve_workers
from app.settings import Settings
from app.shard_from_settings import wait_for_cluster_key
from app.store import StoreRefused
from app.telemetry.tracing import NoTracing


def run_service(settings: Settings) -> None:
    """Serve until the service is stopped. If it cannot start, print why and exit."""
    try:
        if settings.device == "gpu":
            allow_gpu(settings.device, settings.workers)
    except NoDevice as reason:
        raise failure(f"--device (GATHERND_DEVICE) gpu: {reason}", WRONG_SETTINGS) from None
    try:
        settings = wait_for_cluster_key(settings)
        if settings.workers > 1:
            raise typer.Exit(serve_workers(settings))
        serve(settings, create_app(settings))
    except (BadKeysFile, NoTracing, NoGrpc, BadTls) as error:
        raise failure(f"{_setting_of_error(error, settings)}: {error}", WRONG_SETTINGS) from None
    except (BadAddress, BadShardMap) as error:
        raise failure(f"--cluster (GATHERND_CLUSTER) {settings.cluster}: {error}", WRONG_SETTINGS) from None
    except (CannotListen, StoreRefused) as error:
        raise failure(str(error), NOT_AVAILABLE) from None


def _setting_of_error(error: BadKeysFile | NoTracing | NoGrpc | BadTls, settings: Settings) -> str:
    """Return the flag and variable of the setting that caused an error."""
    if isinstance(error, BadKeysFile):
        return f"--api-keys-file (GATHERND_API_KEYS_FILE) {settings.api_keys_file}"
    if isinstance(error, NoTracing):
        return "--otlp-endpoint (GATHERND_OTLP_ENDPOINT)"
    if isinstance(error, NoGrpc):
        on_port = settings.grpc_port is not None
        return "--grpc-port (GATHERND_GRPC_PORT)" if on_port else "--grpc-uds (GATHERND_GRPC_UDS)"
    return "--tls-cert (GATHERND_TLS_CERT)"
