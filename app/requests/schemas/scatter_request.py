"""The JSON of scatters: into a resident tensor, and of the operators that scatter into a copy of their data."""

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

_KEYS: Final = "Of shape [n]: int64, uint64 or string, as the table's keys are; int32 stands for int64."


class ScatterRequest(RequestModel):
    """A ScatterND into a resident tensor, as ONNX 18 has it."""

    indices: Tensor = Field(description="int64; each tuple in the last dimension names an element or slice.")
    updates: Tensor = Field(description="Of the tensor's type and of shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Combined = "none"


class UpsertRequest(RequestModel):
    """Rows of a table with keys: those of known keys change, those of new keys are appended."""

    keys: Tensor = Field(description=f"{_KEYS} A new key gets a row, which starts from zeros.")
    updates: Tensor = Field(description="A row for each key, of the table's type: of shape [n] + table.shape[1:].")
    reduction: Combined = "none"


class RemoveRequest(RequestModel):
    """Keys of a table, whose rows go."""

    keys: Tensor = Field(description=f"{_KEYS} The last rows move into the gaps.")


TABLE_REQUESTS: Final[dict[str, type[RequestModel]]] = {
    TABLE_SCATTER.operator: ScatterRequest,
    UPSERT.operator: UpsertRequest,
    REMOVE.operator: RemoveRequest,
}
"""The bodies of changes of a resident tensor, by the names of their signatures."""


class ScatterCallRequest(RequestModel):
    """The members of a scatter whose output is a new tensor; `dialect` is as its signature has it."""

    data: GivenData
    indices: Tensor
    updates: Tensor
    reduction: Combined = "none"
    dialect: str
    device: Device = Field("auto", description="Where to run; scatters run on the CPU.")
    output_encoding: OutputEncoding = "values"


def check_reduction(signature: Signature, dialect: str, reduction: Reduction, pointer: str) -> None:
    """Raises invalid_field unless the dialect has the reduction."""
    known = signature.reductions[dialect]
    if reduction not in known:
        having = next(name for name, others in signature.reductions.items() if reduction in others)
        raise invalid_field(
            pointer,
            f"{dialect} has no reduction {reduction!r}; it has {', '.join(known)}",
            f"Use a dialect such as '{having}', which has {reduction!r}.",
        )
