"""A parsed request before validation. `app.requests` builds it from a document, and `app.services` runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from app.errors import GatherError
from app.tensors.by_key import ByKey, ItemOfRequest
from app.tensors.operator_signature import OperatorName, Reduction
from app.tensors.tensor import Tensor

Device = Literal["auto", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "gpu")
Encoding = Literal["values", "base64"]
"""The encoding of output items in a JSON response (`output_encoding`)."""
OutputDType = Literal["float16", "bfloat16", "float32", "float64"]
"""The types that a request may choose for a float output (`output_dtype`)."""
OutOfBounds = Literal["error", "clip", "wrap", "fill"]
"""How to handle a component that is still out of bounds after the dialect's own wrap: raise an error, use the nearest
valid index, take the index modulo the size of the axis, or return a slice of one fill value.
"""
OUT_OF_BOUNDS: Final[tuple[OutOfBounds, ...]] = get_args(OutOfBounds)


OUTPUT: Final = "output"
"""Name of the output of an operator that has only one."""


class TableRead(NamedTuple):
    """The resident tensor that was read for a feature of a lookup: its name in the request, its ETag and its
    version.
    """

    tensor: str
    etag: str
    version: int


@dataclass(slots=True, kw_only=True)
class AnyCall:
    """Fields of every request. `explain` requests the plan and route instead of the output.

    `at` is the pointer to the parent of its fields: "" in JSON, `/query`, or `/parameters`.
    """

    explain: bool = False
    at: str = ""

    def pointer(self, field: str) -> str:
        """Return the pointer to a field other than a tensor."""
        return f"{self.at}/{field}"


@dataclass(slots=True, kw_only=True)
class ReadingCall(AnyCall):
    """Fields that gathers and lookups share.

    `fill_value` is used if `out_of_bounds` or `missing` is "fill"; None stands for 0, false or "". `output_dtype` is
    the type of the output; None means the type of the data.
    """

    out_of_bounds: OutOfBounds = "error"
    fill_value: ItemOfRequest | None = None
    output_dtype: OutputDType | None = None


@dataclass(slots=True)
class Call(ReadingCall):
    """One request to an operator. `data` is a tensor or the name of a resident tensor.

    With `by_key`, the data is resident and `indices` are keys of its rows. `parameters` holds the values of the
    signature's parameters, in order; `batch_dims` is the field of that name in dialects that also have an axis.
    `further` maps the inputs after the indices to tensors or names of resident tensors. `reduction` is for scatters. If
    an item exceeded a limit during parsing, `over_limit` is the error. It is raised when the other limits are checked,
    after the operator's rules on types and shapes.
    """

    operator: OperatorName
    data: Tensor | str
    indices: Tensor
    parameters: tuple[int, ...]
    dialect: str
    device: Device = "auto"
    data_pointer: str = "/data/tensor"
    over_limit: GatherError | None = None
    further: Mapping[str, Tensor | str] = field(default_factory=dict)
    reduction: Reduction = "none"
    batch_dims: int = 0
    by_key: ByKey | None = None

    def resident_pointer(self, name: str) -> str:
        """Return the pointer to the name of a resident tensor that replaces an input."""
        if name == "data":
            return self.data_pointer
        return self.pointer(name) if self.at else f"/{name}/tensor"

    def dtype_pointer(self, number: int) -> str:
        """Return the pointer to the field that determines the type of the output."""
        del number
        return self.data_pointer if isinstance(self.data, str) else self.data.dtype_pointer


@dataclass(slots=True)
class Answer:
    """The response of any operator, independent of the format.

    `outputs` are the tensors by name, in order: `output`, the outputs of a gradient, or those of a lookup that does not
    join them; then `found`, if a request by key includes it. `dialect` is "" for a lookup, which has none. `data_etag`
    and `data_version` describe resident data. `replaced` is the number of components that were out of bounds; None if
    such components are errors. `missing` is the number of keys that the table does not have; None if rows are selected
    by position. `tables` lists the tensor that each feature of a lookup read.
    """

    outputs: dict[str, Tensor]
    dialect: str
    device: Literal["cpu", "gpu"] = "cpu"
    data_etag: str | None = None
    data_version: int | None = None
    replaced: int | None = None
    missing: int | None = None
    tables: Sequence[TableRead] = ()

    @property
    def output(self) -> Tensor:
        """The output of an operator that has exactly one."""
        return self.outputs[OUTPUT]

    @property
    def counts(self) -> dict[str, int]:
        """The counts in the response, by name: replaced components and missing keys."""
        counted = {"replaced": self.replaced, "missing": self.missing}
        return {name: count for name, count in counted.items() if count is not None}

    @property
    def tensors(self) -> list[str]:
        """The names of the tensors that the features of a lookup read."""
        return [table.tensor for table in self.tables]
