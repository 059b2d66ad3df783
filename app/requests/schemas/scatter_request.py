"""JSON requests of scatters into a resident tensor and of operators that scatter into a copy of their data."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from app.errors import invalid_field
from app.requests.schemas.common_fields import Combined, OutputEncoding
from app.requests.schemas.gather_request import GivenData, Tensor
from app.requests.schemas.member_types import RequestModel
from app.tensors.gather_call import Device
from app.tensors.operator_signature import Reduction, Signature
from app.tensors.scatter_call import REMOVE, TABLE_SCATTER, UPSERT

_KEYS: Final = "Shape [n]. Has the type of the table's keys (int64, uint64 or string); int32 is accepted for int64."


class ScatterRequest(RequestModel):
    """A ScatterND (ONNX 18) into a resident tensor."""

    indices: Tensor = Field(description="int64. Each tuple in the last dimension names an element or slice.")
    updates: Tensor = Field(description="Has the tensor's type and shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Combined = "none"


class UpsertRequest(RequestModel):
    """Rows to change or add in a table with keys: rows of known keys change, rows of new keys are appended."""

    keys: Tensor = Field(description=f"{_KEYS} A new key gets a new row, which starts from zeros.")
    updates: Tensor = Field(description="One row per key. Has the table's type and shape [n] + table.shape[1:].")
    reduction: Combined = "none"


class RemoveRequest(RequestModel):
    """Keys of the rows to remove from a table."""

    keys: Tensor = Field(description=f"{_KEYS} The last rows move into the gaps.")


TABLE_REQUESTS: Final[dict[str, type[RequestModel]]] = {
    TABLE_SCATTER.operator: ScatterRequest,
    UPSERT.operator: UpsertRequest,
    REMOVE.operator: RemoveRequest,
}
"""Request models of changes to a resident tensor, by the names of their signatures."""


class ScatterCallRequest(RequestModel):
    """The members of a scatter whose output is a new tensor. Its signature defines `dialect`."""

    data: GivenData
    indices: Tensor
    updates: Tensor
    reduction: Combined = "none"
    dialect: str
    device: Device = Field("auto", description="Device to run on. Scatters run on the CPU.")
    output_encoding: OutputEncoding = "values"


def check_reduction(signature: Signature, dialect: str, reduction: Reduction, pointer: str) -> None:
    """Raise invalid_field unless the dialect has the reduction."""
    known = signature.reductions[dialect]
    if reduction not in known:
        having = next(name for name, others in signature.reductions.items() if reduction in others)
        raise invalid_field(
            pointer,
            f"{dialect} has no reduction {reduction!r}; it has {', '.join(known)}",
            f"Use a dialect such as '{having}', which has {reduction!r}.",
        )
