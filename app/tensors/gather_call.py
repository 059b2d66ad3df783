"""A request after parsing and before validation: `app.requests` builds it from a document, `app.services` runs it."""

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
"""How a JSON answer has the items of its output (`output_encoding`)."""
OutputDType = Literal["float16", "bfloat16", "float32", "float64"]
"""The types that an output of floats can be asked for in (`output_dtype`)."""
OutOfBounds = Literal["error", "clip", "wrap", "fill"]
"""What becomes of a component that is outside of its axis once the dialect's own wrap has been done: an error; the
nearest valid one; the one modulo the size of the axis; or the whole slice is filled with one value."""
OUT_OF_BOUNDS: Final[tuple[OutOfBounds, ...]] = get_args(OutOfBounds)


OUTPUT: Final = "output"
"""The name of the output of an operator that has one."""


class TableRead(NamedTuple):
    """The resident tensor that a feature of a lookup read: its name in the request, its ETag and its version."""

    tensor: str
    etag: str
    version: int


@dataclass(slots=True, kw_only=True)
class AnyCall:
    """What every request says: whether it asks for the plan and the choice of a route instead of the output.

    `at` is the pointer that its fields stand below: "" in JSON, `/query`, or `/parameters`.
    """

    explain: bool = False
    at: str = ""

    def pointer(self, field: str) -> str:
        """Where the request has a field that is no tensor."""
        return f"{self.at}/{field}"


@dataclass(slots=True, kw_only=True)
class ReadingCall(AnyCall):
    """What gathers and lookups have in common.

    `fill_value` is for `out_of_bounds` and `missing` "fill": None stands for 0, false or "". `output_dtype` is the type
    of the output, None for that of what is read.
    """

    out_of_bounds: OutOfBounds = "error"
    fill_value: ItemOfRequest | None = None
    output_dtype: OutputDType | None = None


@dataclass(slots=True)
class Call(ReadingCall):
    """One request to an operator: `data` is a tensor or the name of a resident one.

    With `by_key` the data is resident, and `indices` are keys of its rows.
    `parameters` has the values of the signature's parameters, in their order; `batch_dims` is the one beside an axis.
    `further` has the inputs behind the indices by name, tensors or names of resident ones; `reduction` says how an
    update of a scatter combines with what is there. `over_limit` is a limit that an item was found to exceed while it
    was read: it is raised where limits have their turn, which is after the operator's rules on types and shapes.
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
        """Where the request names a resident tensor in place of an input."""
        if name == "data":
            return self.data_pointer
        return self.pointer(name) if self.at else f"/{name}/tensor"

    def dtype_pointer(self, number: int) -> str:
        """Where the request has what gives the output its type."""
        del number
        return self.data_pointer if isinstance(self.data, str) else self.data.dtype_pointer


@dataclass(slots=True)
class Answer:
    """What any operator answers, whichever format says it.

    `outputs` are the tensors by name, in order: `output`, or those of a gradient, or of a lookup whose outputs are not
    joined; behind them `found`, if a request by key asks for it. `dialect` is "" for a lookup, which has none.
    `data_etag` and `data_version` are those of resident data. `replaced` counts the components that were out of bounds;
    None if that is an error. `missing` counts the keys that the table lacks; None if rows are named by position. A
    lookup says what each feature has read in `tables`.
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
        """What it counts, by name: replaced components and missing keys, if it does."""
        counted = {"replaced": self.replaced, "missing": self.missing}
        return {name: count for name, count in counted.items() if count is not None}

    @property
    def tensors(self) -> list[str]:
        """The names of the tensors that the features of a lookup read."""
        return [table.tensor for table in self.tables]
