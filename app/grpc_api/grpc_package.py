"""The packages of the extra `grpc`: whether they are there, and what gRPC itself writes into the log.

Callers could fill the log with lines that are of no use to an operator.
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
    """gRPC is asked for and its packages are missing; the text says which extra has them."""


def check_grpc() -> None:
    """Raises NoGrpc where the packages of the extra `grpc` are missing."""
    quiet_core()
    for package in ("grpc", "google.protobuf"):
        try:
            import_module(package)
        except ImportError:
            raise NoGrpc("gRPC needs the extra `grpc`: pip install ./clients/python '.[grpc]' in a checkout") from None


def quiet_core() -> None:
    """Have gRPC's core write nothing to stderr, unless the environment says what; to be called before it is imported.

    It writes lines of its own form, one for each header field that a caller got wrong.
    """
    os.environ.setdefault(_VERBOSITY, "NONE")


def quiet_python() -> None:
    """Leave out what callers cause from what gRPC's Python part logs and prints."""
    logging.getLogger(_LOGGER).addFilter(is_no_callers_doing)
    # It prints a traceback to stderr, past all logging, where an error cannot be sent since the call has ended.
    own = vars(import_module(_LOGGER))
    own["traceback"] = SimpleNamespace(**vars(traceback) | {"print_exc": _nothing})


def is_no_callers_doing(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC's own log is to be kept; the others are tracebacks.

    Those are of methods and metadata that are no UTF-8, and of calls that had ended before they could be answered.
    """
    import grpc.aio  # noqa: PLC0415  (after `quiet_core`)

    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, UnicodeDecodeError | grpc.aio.InternalError)


def _nothing(*_: object, **__: object) -> None:
    """Print nothing."""
