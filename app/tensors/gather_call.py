"""A request, read and typed but not yet judged: what `wire` makes of bytes and `service` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from app.errors import GatherError
from app.tensors.dtypes import DType
from app.tensors.operator_signature import OperatorName
from app.tensors.scatter_call import Reduction
from app.tensors.tensor import Tensor

Device = Literal["auto", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "gpu")
Encoding = Literal["values", "base64"]
"""How a JSON answer has the items of its output (`output_encoding`)."""
ENCODINGS: tuple[Encoding, ...] = ("values", "base64")
OutOfBounds = Literal["error", "clip", "wrap", "fill"]
"""What becomes of a component that is outside of its axis once the dialect's own wrap has been done: an error; the
nearest valid one; the one modulo the size of the axis; or the whole slice is filled with one value."""
OUT_OF_BOUNDS: Final[tuple[OutOfBounds, ...]] = get_args(OutOfBounds)


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
    `reduction` says how an update combines with what is there. `batch_dims` is the one beside an axis.
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


@dataclass(slots=True)
class Answer:
    """The output, the dialect it followed, the device it ran on; of resident data the ETag, and the version's number.

    `replaced` is how many components were out of bounds, None where that is an error.
    """

    output: Tensor
    dialect: str
    device: Literal["cpu", "gpu"]
    data_etag: str | None = None
    data_version: int | None = None
    replaced: int | None = None
