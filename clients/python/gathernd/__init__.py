"""Python client of the gathernd service: NumPy arrays in, NumPy arrays out.

from gathernd import GatherND

with GatherND("http://127.0.0.1:8080") as service:
    service.gathernd([[0.0, 1.0], [2.0, 3.0]], [[0, 0], [1, 1]])  # array([0., 3.])
    service.put("items", table)
    service.gathernd("items", [[5], [7]])  # rows 5 and 7 of table
"""

from __future__ import annotations

from . import errors
from ._client import AsyncGatherND, GatherND
from ._endpoints import TensorInfo
from ._module_functions import gather, gather_elements, gathernd
from ._retries import Retries
from .errors import GatherNDError, ServiceError, TransportError

__all__ = [
    "AsyncGatherND",
    "GatherND",
    "GatherNDError",
    "Retries",
    "ServiceError",
    "TensorInfo",
    "TransportError",
    "errors",
    "gather",
    "gather_elements",
    "gathernd",
]
