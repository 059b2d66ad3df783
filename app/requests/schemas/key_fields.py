"""The members of a request that names rows by key."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.requests.schemas.common_fields import AnyJson
from app.requests.schemas.member_types import ABSENT, JSON_VALUE, JsonBool
from app.tensors.by_key import Missing

KEYS_DESCRIPTION: Final = (
    "Keys of rows of a table that has a key column, in place of `indices`: int64, uint64 or string, as the table's "
    "keys are; int32 stands for int64. The output has the shape that indices of this shape would give."
)
_MISSING: Final = (
    "With `keys`, what becomes of a key that the table lacks: an error; its row is filled with `fill_value`; or the "
    "row that `missing_row` names stands for it."
)
MISSING_ROW_DESCRIPTION: Final = (
    'With `missing` row, the row that stands for missing keys: its position, such as 0, or its key, such as {"key": 7}.'
)
_FOUND: Final = (
    "With `keys`, whether the answer has `found` beside the output: a bool for each key, true if the table has it."
)

MissingMode = Annotated[Missing, Field(description=_MISSING)]
RowForMissing = Annotated[AnyJson, JSON_VALUE, Field(description=MISSING_ROW_DESCRIPTION)]
AsksForFound = Annotated[JsonBool, Field(description=_FOUND)]
KEY_MEMBERS: Final[dict[str, Any]] = {
    "missing": (MissingMode, "error"),
    "missing_row": (RowForMissing, ABSENT),
    "found": (AsksForFound, False),
}
"""The members of a model beside `keys`; one that is left out is not in `model_fields_set`."""
