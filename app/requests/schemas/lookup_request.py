"""JSON requests for lookups. In binary formats, the JSON does not contain the arrays, which are tensors in the body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, create_model
from pydantic.types import FailFast

from app.errors import GatherError, invalid_field
from app.requests.schemas.common_fields import (
    KEYS_DESCRIPTION,
    RESIDENT,
    AnyJson,
    AsksForFound,
    MissingMode,
    Rounded,
    RowForMissing,
)
from app.requests.schemas.gather_request import Tensor
from app.requests.schemas.member_types import ABSENT, FEATURES, JsonBool, RequestModel, TensorName
from app.tensors.by_key import KEY_FIELDS
from app.tensors.gather_call import Encoding, OutOfBounds
from app.tensors.lookup_call import ARRAYS, ROWS_OF_BAGS, Pooling


class LookupFeature(RequestModel):
    """Rows of one resident tensor by position or key: single rows, or bags of rows (`offsets`), each pooled to one."""

    tensor: TensorName = Field(description=f"{RESIDENT}. Its rows are those of the first axis.")
    indices: Tensor = Field(
        ABSENT,
        description="Positions of rows: int32 or int64, not negative. One dimension if pooled.",
    )
    keys: Tensor = Field(ABSENT, description=KEYS_DESCRIPTION)
    offsets: Tensor = Field(
        ABSENT,
        description="With pooling: the position in `indices` at which each bag begins. Has the type of `indices`, "
        "starts with 0 and never decreases. The last bag ends with the indices.",
    )
    pooling: Pooling = Field(
        "none",
        description="How to combine the rows of a bag into one row: `sum`, `mean`, or `max` per column; `none` returns "
        "each row separately. Sums are added in index order in float32 (float64 for float64) and rounded once.",
    )
    weights: Tensor = Field(
        ABSENT,
        description="With pooling sum: a factor for each row, one per index, in the table's type.",
    )
    include_last_offset: JsonBool = Field(
        False,
        description="With pooling: whether `offsets` has one more entry, the end of the last bag, which is the number "
        "of indices.",
    )
    padding_index: AnyJson = Field(
        ABSENT,
        description="With pooling: an entry to skip in every bag, by its position, such as 0, or, with `keys`, by its "
        'key, such as {"key": 7}. The table may lack the key. A mean divides by the number of remaining entries.',
    )
    default_index: AnyJson = Field(
        ABSENT,
        description="With pooling: the row to return for an empty bag, by its position or, with `keys`, by its key. If "
        "omitted: zeros. A bag is also empty if all its entries are skipped.",
    )
    missing: MissingMode = "error"
    missing_row: RowForMissing = ABSENT
    found: AsksForFound = False


_FIELDS_WITHOUT_ARRAYS: Final = tuple(name for name in LookupFeature.model_fields if name not in ARRAYS)
SETTINGS: Final = tuple(name for name in _FIELDS_WITHOUT_ARRAYS if name not in (*KEY_FIELDS, *ROWS_OF_BAGS))
"""Fields of a feature other than its arrays and its fields for keys. `app.tensors.lookup_call.Feature` has the same
names."""
_FIELDS: Final[dict[str, Any]] = {name: (one.annotation, one) for name, one in LookupFeature.model_fields.items()}
LookupFeatureSettings: Any = create_model(
    "LookupFeatureSettings",
    __base__=RequestModel,
    __module__=__name__,
    __doc__="A feature without its arrays.",
    **{name: _FIELDS[name] for name in _FIELDS_WITHOUT_ARRAYS},
)


class _LookupFields(RequestModel):
    """The members other than `features`, which comes first in each subclass."""

    concat: JsonBool = Field(
        True,
        description="Whether to join the features' outputs on axis 1, which requires equal types and numbers of rows. "
        "If false, `outputs` has the output of each feature.",
    )
    out_of_bounds: OutOfBounds = Field(
        "error",
        description="How to treat an index that is out of bounds: report an error; use the nearest valid index "
        "(`clip`) or the index modulo the number of rows (`wrap`); or use a row of `fill_value` (`fill`), also in a "
        "bag.",
    )
    fill_value: AnyJson = Field(
        ABSENT,
        description="The value for rows filled by `out_of_bounds` fill or `missing` fill, written like one item of "
        "`values`. If omitted: 0, false or an empty string.",
    )
    output_dtype: Rounded = ABSENT
    output_encoding: Encoding = Field("values", description="Encoding of the outputs' items.")


class LookupRequest(_LookupFields):
    """A lookup: rows of many resident tensors in one request, as single rows or pooled bags."""

    features: Annotated[list[LookupFeature], Field(min_length=1), FailFast(), FEATURES]


class LookupParameters(_LookupFields):
    """A lookup without its arrays, for binary formats."""

    features: Annotated[list[LookupFeatureSettings], Field(min_length=1), FailFast(), FEATURES]


def check_feature_count(count: int, pointer: str, most: int) -> None:
    """Raise limit_exceeded for more than `most` features."""
    if count > most:
        raise GatherError(
            "limit_exceeded",
            f"the request has {count} features; the limit is {most}",
            pointer=f"{pointer}/features",
            facts={"limit": "features", "maximum": most},
            hint=f"Send at most {most} features in a request, or have the operator raise GATHERND_MAX_FEATURES.",
        )


def check_last_offset(feature: LookupFeature, pointer: str) -> None:
    """Raise invalid_field if the feature at `pointer` has `include_last_offset` but no pooling."""
    if feature.include_last_offset and feature.pooling == "none":
        raise invalid_field(
            f"{pointer}/include_last_offset",
            "include_last_offset is for pooling sum, mean or max, but this feature has no pooling",
            f"Leave out 'include_last_offset' at {pointer}, or give the feature a 'pooling', such as 'sum'.",
        )


def check_arrays_given(pooling: Pooling, given: Sequence[str], pointer: Callable[[str], str]) -> None:
    """Check that a feature has the arrays that its pooling needs.

    `given` are the names of its arrays; `pointer` returns the place of an array. Raises invalid_field.
    """
    if pooling == "none":
        for name in ("offsets", "weights"):
            if name in given:
                which = "sum" if name == "weights" else "sum, mean or max"
                raise invalid_field(
                    pointer(name),
                    f"{name} are for pooling {which}, but this feature has no pooling",
                    f"Leave out '{name}' at {pointer(name)}, or give the feature a 'pooling', such as 'sum'.",
                )
        return
    if "offsets" not in given:
        at = pointer("offsets")
        raise invalid_field(
            at,
            f"offsets is missing; pooling {pooling} requires it",
            f"Add 'offsets' at {at}: for each bag the position of its first index, such as [0] for a single bag.",
        )
    if "weights" in given and pooling != "sum":
        at = pointer("weights")
        raise invalid_field(at, f"weights are for pooling sum, not {pooling}", f"Leave out 'weights' at {at}.")
