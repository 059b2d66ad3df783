"""Members of requests that name rows by key."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.requests.schemas.common_fields import AnyJson
from app.requests.schemas.member_types import ABSENT, JSON_VALUE, JsonBool
from app.tensors.by_key import Missing

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
