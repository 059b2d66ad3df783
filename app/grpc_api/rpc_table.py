"""The table of calls: the methods of both services, and the REST operation whose access rules apply to each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from app.api.route_table import OPERATIONS
from app.formats.grpc.messages.classes import HEALTH, INFERENCE
from app.security.authorizer import Access

SERVICE: Final[str] = INFERENCE.full_name
_OTHER_NAMES: Final = {
    "ModelStreamInfer": "modelInfer",
    "RepositoryModelLoad": "repositoryLoad",
    "RepositoryModelUnload": "repositoryUnload",
}
"""The REST operations whose names differ from those of the corresponding calls of the inference protocol."""
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
        return self.method in ("ModelInfer", "ModelStreamInfer")


def _operation_of(method: str) -> str:
    """Return the REST operation that corresponds to a call of the inference protocol."""
    return _OTHER_NAMES.get(method) or method[0].lower() + method[1:]


RPCS: Final[Mapping[str, Rpc]] = {
    f"/{service.full_name}/{method.name}": Rpc(
        method.name,
        f"{_MARK}/{service.full_name}/{method.name}",
        OPERATIONS[_operation_of(method.name)][1].access if service is INFERENCE else Access.PUBLIC,
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
