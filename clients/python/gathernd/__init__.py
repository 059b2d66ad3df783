"""Python client of the gathernd service: NumPy arrays in, NumPy arrays out.

from gathernd import Client

with Client("http://127.0.0.1:8080") as client:
    client.gathernd([[0.0, 1.0], [2.0, 3.0]], [[0, 0], [1, 1]])  # array([0., 3.])
    client.put("items", table)
    client.gathernd("items", [[5], [7]])  # rows 5 and 7 of table
    client["items"][5:7]  # rows 5 and 6
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from . import errors
from ._answers import Alias, KeysInfo, Result, RowsChanged, ScatterInfo, TableRange, TensorInfo
from ._async.client import AsyncClient
from ._connection_settings import VERSION
from ._gradients import SparseGradient
from ._imports import ImportInfo
from ._lookups import Feature, LookupResult, features_of
from ._module_functions import gather, gather_elements, gathernd
from ._retries import Retries
from ._sync.client import Client
from .errors import GatherNDError, ServiceError, TransportError

__version__ = VERSION

if TYPE_CHECKING:
    GatherND = Client
    AsyncGatherND = AsyncClient

__all__ = [
    "Alias",
    "AsyncClient",
    "Client",
    "Feature",
    "GatherNDError",
    "ImportInfo",
    "KeysInfo",
    "LookupResult",
    "Result",
    "Retries",
    "RowsChanged",
    "ScatterInfo",
    "ServiceError",
    "SparseGradient",
    "TableRange",
    "TensorInfo",
    "TransportError",
    "__version__",
    "errors",
    "features_of",
    "gather",
    "gather_elements",
    "gathernd",
]

_OLD_NAMES = {"GatherND": Client, "AsyncGatherND": AsyncClient}


def __getattr__(name: str) -> Any:
    """Return a client class by its deprecated name. This will be removed in version 0.2."""
    if name not in _OLD_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _OLD_NAMES[name]
    warnings.warn(f"gathernd.{name} is now gathernd.{new.__name__}", DeprecationWarning, stacklevel=2)
    return new
