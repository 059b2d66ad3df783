"""A request, read and typed but not yet judged: what `wire` makes of bytes and `service` carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, get_args

from app.errors import GatherError
from app.tensors.dtypes import DType
from app.tensors.operator_signature import OperatorName
from app.tensors.scatter_call import Reduction
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


class FillValue(Protocol):
    """The value that a request gives for slices that are filled, which has no type until the data has one."""

    @property
    def pointer(self) -> str:
        """Where it stands in the request."""
        ...

    def item(self, dtype: DType) -> Tensor:
        """The value as a tensor of one item. Raises value_not_representable."""
        ...


@dataclass(slots=True)
class Call:
    """One request to an operator: `data` is a tensor or the name of a resident one, `parameter` batch_dims or axis.

    The pointers name the fields in the form in which the request gave them, such as `/batch_dims`, `/query/batch_dims`
    or `/parameters/batch_dims`. `over_limit` is a limit that an item was found to exceed while it was read: it is
    raised where limits have their turn, which is after the operator's rules on types and shapes. `explain` asks for
    the plan and the choice of a route instead of the output. `fill_value` is for `out_of_bounds` "fill": None stands
    for 0, false or "". `updates` is the input behind the indices of an operator that has one, such as a scatter, whose
    `reduction` says how an update combines with what is there. `batch_dims` is the one beside an axis. `output_dtype`
    is the type of the output, None for that of data.
    """

    operator: OperatorName
    data: Tensor | str
    indices: Tensor
    parameter: int
    dialect: str
    device: Device = "auto"
    parameter_pointer: str = "/batch_dims"
    device_pointer: str = "/device"
    data_pointer: str = "/data/tensor"
    over_limit: GatherError | None = None
    explain: bool = False
    out_of_bounds: OutOfBounds = "error"
    fill_value: FillValue | None = None
    updates: Tensor | None = None
    reduction: Reduction = "none"
    reduction_pointer: str = "/reduction"
    batch_dims: int = 0
    output_dtype: OutputDType | None = None
    output_dtype_pointer: str = "/output_dtype"

    def dtype_pointer(self, number: int) -> str:
        """Where the request has what gives the output its type."""
        del number
        return self.data_pointer if isinstance(self.data, str) else self.data.dtype_pointer


@dataclass(slots=True)
class Answer:
    """What any operator answers, whichever format says it.

    `outputs` are the tensors by name, in order: `output`, or those of a gradient, or of a lookup whose outputs are not
    joined. `dialect` is "" for a lookup, which has none. `data_etag` and `data_version` are those of resident data,
    and `replaced` counts the components that were out of bounds; None if that is an error. A lookup says what each
    feature has read in `tables`.
    """

    outputs: dict[str, Tensor]
    dialect: str
    device: Literal["cpu", "gpu"] = "cpu"
    data_etag: str | None = None
    data_version: int | None = None
    replaced: int | None = None
    tables: Sequence[TableRead] = ()

    @property
    def output(self) -> Tensor:
        """The only output of an operator that has one."""
        return self.outputs[OUTPUT]

    @property
    def tensors(self) -> list[str]:
        """The names of the tensors that the features of a lookup read."""
        return [table.tensor for table in self.tables]
