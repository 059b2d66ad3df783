"""Fields that requests of several families share.

Each model sets their order and their defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from app.requests.schemas.member_types import ABSENT, JSON_VALUE, JsonBool, TensorName, one_of
from app.tensors.by_key import Missing
from app.tensors.gather_call import Device, Encoding, OutOfBounds, OutputDType
from app.tensors.operator_signature import Reduction

RESIDENT: Final = "Name of a resident tensor: `NAME` for its current version, `NAME@7` for version 7, or an alias"
"""OpenAPI's description of a member that names a resident tensor."""
OUT_OF_BOUNDS_DESCRIPTION: Final = (
    "How to treat an index component that is out of bounds after the dialect's own wrap: report an error; use the "
    "nearest valid index (`clip`) or the index modulo the size of the axis (`wrap`); or fill its whole slice (`fill`)."
)
FILL_VALUE_DESCRIPTION: Final = (
    "The value for slices that `out_of_bounds` fill fills. If left out: 0, false or an empty string."
)
_OUTPUT_DTYPE: Final = (
    "Element type of the output, if the data has a float type. Each item is rounded once, half to even. If left out: "
    "the data's type."
)
_REDUCTION: Final = (
    "How to combine an update with the present value. Updates apply in row-major order; with `none` the last update of "
    "a place replaces the value. Types bool, string and complex support `none` only."
)

ResidentName = Annotated[TensorName, Field(description=f"{RESIDENT}.")]
AnyDevice = Annotated[Device, Field(description="Device to run on; `auto` lets the service choose.")]
OutputEncoding = Annotated[Encoding, Field(description="Encoding of the output's items.")]
Mode = Annotated[OutOfBounds, Field(description=OUT_OF_BOUNDS_DESCRIPTION)]
Rounded = Annotated[OutputDType, Field(description=_OUTPUT_DTYPE)]
Combined = Annotated[Reduction, Field(description=_REDUCTION)]
AnyJson = Annotated[Any, WithJsonSchema({})]


def dialect_field(dialects: Any, default: str) -> Any:
    """Return the type and the field `dialect` for requests that may name one of `dialects`."""
    return one_of(dialects), Field(default, description="Specification and version whose rules apply.")


KEYS_DESCRIPTION: Final = (
    "Keys of rows, in place of `indices`, for a table with keys. Element type: that of the table's keys (int64, uint64 "
    "or string); int32 is accepted for int64. The output has the same shape as for indices of this shape."
)
_MISSING: Final = (
    "With `keys`: how to treat a key that the table does not have. `error` reports it, `fill` answers a row of "
    "`fill_value`, and `row` answers the row that `missing_row` names."
)
MISSING_ROW_DESCRIPTION: Final = (
    'With `missing` row: the row to answer for missing keys, by position, such as 0, or by key, such as {"key": 7}.'
)
_FOUND: Final = "With `keys`: whether to answer `found` as well, one bool per key, true if the table has the key."

MissingMode = Annotated[Missing, Field(description=_MISSING)]
RowForMissing = Annotated[AnyJson, JSON_VALUE, Field(description=MISSING_ROW_DESCRIPTION)]
AsksForFound = Annotated[JsonBool, Field(description=_FOUND)]
KEY_MEMBERS: Final[dict[str, Any]] = {
    "missing": (MissingMode, "error"),
    "missing_row": (RowForMissing, ABSENT),
    "found": (AsksForFound, False),
}
"""The members that go with `keys` in a model. `model_fields_set` tells which of them a request has."""
