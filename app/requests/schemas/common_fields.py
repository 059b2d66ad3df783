"""Fields that the requests of several families have, each declared once.

A model says in which order it has them, and what holds if one is left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from app.requests.schemas.member_types import TensorName, one_of
from app.tensors.gather_call import Device, Encoding, OutOfBounds, OutputDType
from app.tensors.operator_signature import Reduction

RESIDENT: Final = "Name of a resident tensor, which stands for its current version, `NAME@7` for version 7, or an alias"
"""What OpenAPI says of a member that names a resident tensor."""
OUT_OF_BOUNDS_DESCRIPTION: Final = (
    "What becomes of a component of an index that is out of bounds, after the dialect's own wrap: an error; the "
    "nearest valid index (`clip`); the index modulo the size of the axis (`wrap`); or its whole slice is filled."
)
FILL_VALUE_DESCRIPTION: Final = (
    "With `out_of_bounds` fill, what slices are filled with; if left out 0, false or an empty string."
)
_OUTPUT_DTYPE: Final = (
    "The type of the output, for data of a float type: each item is rounded once, half to even. Data's own if left out."
)
_REDUCTION: Final = (
    "How an update combines with what is there. Updates count in row-major order: with none the last one of a place "
    "wins, others are applied one after the other. bool, string and complex take none only."
)

ResidentName = Annotated[TensorName, Field(description=f"{RESIDENT}.")]
AnyDevice = Annotated[Device, Field(description="Where to run; `auto` lets the service choose.")]
OutputEncoding = Annotated[Encoding, Field(description="Form of the output's items.")]
Mode = Annotated[OutOfBounds, Field(description=OUT_OF_BOUNDS_DESCRIPTION)]
Rounded = Annotated[OutputDType, Field(description=_OUTPUT_DTYPE)]
Combined = Annotated[Reduction, Field(description=_REDUCTION)]
AnyJson = Annotated[Any, WithJsonSchema({})]


def dialect_field(dialects: Any, default: str) -> Any:
    """The field `dialect` of requests that may name one of `dialects`."""
    return one_of(dialects), Field(default, description="Whose rules hold.")
