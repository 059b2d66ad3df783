"""The calls: the methods of both services, and what each is over REST, whose rules of access hold for it."""

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
"""The operation that each call of the inference protocol is over REST."""
NOT_OFFERED: Final = (
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister", "TraceSetting", "LogSettings",
)  # fmt: skip
"""Calls of extensions that this service has not."""
OTHER: Final = "other"
"""Stands in metrics for every method that there is not."""
_MARK: Final = "grpc:"


class Rpc(NamedTuple):
    """A call: its method as metrics show it, its path with a mark that no path of HTTP has, who may call it, and the
    names of its messages.
    """

    method: str
    path: str
    access: Access
    input: str
    output: str

    @property
    def is_public(self) -> bool:
        """Whether anybody may call it."""
        return self.access is Access.PUBLIC

    @property
    def is_infer(self) -> bool:
        """Whether it gathers."""
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
"""The calls by their paths."""
UNKNOWN: Final = Rpc(OTHER, f"{_MARK}{OTHER}", Access.GATHER, "", "")
_TEMPLATES: Final = {rpc.path: path for path, rpc in RPCS.items()} | {UNKNOWN.path: OTHER}


def template(path: str) -> str | None:
    """The label under which a call's path is counted, None for a path of HTTP."""
    return _TEMPLATES.get(path) if path.startswith(_MARK) else None
