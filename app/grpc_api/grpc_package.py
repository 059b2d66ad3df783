"""Checks that the packages of the `grpc` extra are installed, and limits what gRPC itself logs.

Otherwise, callers could fill the log with lines that are useless to whoever runs the service.
"""

from __future__ import annotations

import logging
import os
import traceback
from importlib import import_module
from types import SimpleNamespace
from typing import Final

_LOGGER: Final = "grpc._cython.cygrpc"
_VERBOSITY: Final = "GRPC_VERBOSITY"


class NoGrpc(Exception):
    """gRPC is requested, but its packages are missing. The message says which extra contains them."""


def check_grpc() -> None:
    """Raise NoGrpc if the packages of the `grpc` extra are missing."""
    quiet_core()
    for package in ("grpc", "google.protobuf"):
        try:
            import_module(package)
        except ImportError:
            raise NoGrpc("gRPC needs the extra `grpc`: pip install ./clients/python '.[grpc]' in a checkout") from None


def quiet_core() -> None:
    """Stop gRPC's core from writing to stderr, unless the environment sets its verbosity. Call before importing gRPC.

    The core writes lines in its own format, one for each invalid header field that a caller sends.
    """
    os.environ.setdefault(_VERBOSITY, "NONE")


def quiet_python() -> None:
    """Suppress what gRPC's Python layer logs and prints as a result of callers' mistakes."""
    logging.getLogger(_LOGGER).addFilter(is_worth_logging)
    # gRPC prints a traceback to stderr, bypassing logging, if it cannot send an error because the call has ended.
    own = vars(import_module(_LOGGER))
    own["traceback"] = SimpleNamespace(**vars(traceback) | {"print_exc": _print_nothing})


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Return True if a line of gRPC's own log should be kept.

    Drops the tracebacks for method names and metadata that are not UTF-8, and for calls that ended before their
    response.
    """
    import grpc.aio  # noqa: PLC0415  (after `quiet_core`)

    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, UnicodeDecodeError | grpc.aio.InternalError)


def _print_nothing(*_: object, **__: object) -> None:
    """Print nothing."""
