"""The table of calls: the methods of both services, and the REST operation whose access rules apply to each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from app.api.route_table import OPERATIONS
from app.formats.grpc.messages.classes import HEALTH, INFERENCE
from app.security.authorizer import Access

SERVICE: Final[str] = INFERENCE.full_name
_OPERATION_OF: Final = {
    "ServerLive": "serverLive",
    "ServerReady": "serverReady",
    "ModelReady": "modelReady",
    "ServerMetadata": "serverMetadata",
    "ModelMetadata": "modelMetadata",
    "ModelInfer": "modelInfer",
    "ModelStreamInfer": "modelInfer",
    "ModelConfig": "modelConfig",
    "ModelStatistics": "modelStatistics",
    "RepositoryIndex": "repositoryIndex",
    "RepositoryModelLoad": "repositoryLoad",
    "RepositoryModelUnload": "repositoryUnload",
}
"""The REST operation that corresponds to each call of the inference protocol."""
NOT_OFFERED: Final = (
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings",
)  # fmt: skip
"""Calls of extensions that this service does not support."""
OTHER: Final = "other"
"""The label in metrics for all unknown methods."""
_MARK: Final = "grpc:"


class Rpc(NamedTuple):
    """A call: its method name in metrics, its path with a prefix that no HTTP path has, the access that it requires,
    and the names of its messages.
    """

    method: str
    path: str
    access: Access
    input: str
    output: str

    @property
    def is_public(self) -> bool:
        """True if it needs no API key."""
        return self.access is Access.PUBLIC

    @property
    def is_infer(self) -> bool:
        """True for infer calls."""
        return _OPERATION_OF.get(self.method) == "modelInfer"


RPCS: Final[Mapping[str, Rpc]] = {
    f"/{service.full_name}/{method.name}": Rpc(
        method.name,
        f"{_MARK}/{service.full_name}/{method.name}",
        OPERATIONS[_OPERATION_OF[method.name]][1].access if service is INFERENCE else Access.PUBLIC,
        method.input_type.full_name,
        method.output_type.full_name,
    )
    for service in (INFERENCE, HEALTH)
    for method in service.methods
}
"""The calls by path."""
UNKNOWN: Final = Rpc(OTHER, f"{_MARK}{OTHER}", Access.GATHER, "", "")
_TEMPLATES: Final = {rpc.path: path for path, rpc in RPCS.items()} | {UNKNOWN.path: OTHER}


def template(path: str) -> str | None:
    """Return the label of a call's path in metrics, or None for an HTTP path."""
    return _TEMPLATES.get(path) if path.startswith(_MARK) else None
