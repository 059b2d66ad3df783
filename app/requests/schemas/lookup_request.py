"""The JSON of a lookup, whole and as the binary formats have it: without the arrays, which stand beside it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, create_model
from pydantic.types import FailFast

from app.errors import GatherError, invalid_field
from app.requests.schemas.common_fields import RESIDENT, AnyJson, Rounded
from app.requests.schemas.gather_request import Tensor
from app.requests.schemas.key_fields import KEYS_DESCRIPTION, AsksForFound, MissingMode, RowForMissing
from app.requests.schemas.member_types import ABSENT, FEATURES, JsonBool, RequestModel, TensorName
from app.tensors.by_key import KEY_FIELDS
from app.tensors.gather_call import Encoding, OutOfBounds
from app.tensors.lookup_call import ARRAYS, ROWS_OF_BAGS, Pooling


class LookupFeature(RequestModel):
    """Rows of one resident tensor, by their positions or keys: single rows, or with `offsets` bags of rows, pooled to
    one.
    """

    tensor: TensorName = Field(description=f"{RESIDENT}. Its rows lie along the first axis.")
    indices: Tensor = Field(
        ABSENT,
        description="Positions of rows, int32 or int64, none negative; of one dimension where pooled.",
    )
    keys: Tensor = Field(ABSENT, description=KEYS_DESCRIPTION)
    offsets: Tensor = Field(
        ABSENT,
        description="With pooling, the position in `indices` at which each bag begins: of the type of `indices`, the "
        "first is 0, none is less than the one before, and the last bag ends with the indices.",
    )
    pooling: Pooling = Field(
        "none",
        description="What becomes of the rows of a bag: each is a row of the output, or their sum, mean or largest "
        "items are one row. Sums go in index order in float32 (float64 for float64) and are rounded once.",
    )
    weights: Tensor = Field(
        ABSENT,
        description="With pooling sum, what each row is multiplied by: one for each index, of the table's type.",
    )
    include_last_offset: JsonBool = Field(
        False,
        description="With pooling, whether `offsets` has one entry more, the end of the last bag: the number of "
        "indices.",
    )
    padding_index: AnyJson = Field(
        ABSENT,
        description="With pooling, the entry that is skipped wherever it is in a bag: a position, such as 0, or with "
        '`keys` a key, such as {"key": 7}, which the table may lack. A mean divides by the entries that are left.',
    )
    default_index: AnyJson = Field(
        ABSENT,
        description="With pooling, the row that an empty bag is of, zeros if left out: its position, or with `keys` "
        "its key. A bag is empty, too, if all its entries are skipped.",
    )
    missing: MissingMode = "error"
    missing_row: RowForMissing = ABSENT
    found: AsksForFound = False


_BESIDE: Final = tuple(name for name in LookupFeature.model_fields if name not in ARRAYS)
SETTINGS: Final = tuple(name for name in _BESIDE if name not in (*KEY_FIELDS, *ROWS_OF_BAGS))
"""What a feature says beside its arrays, and but for keys; `app.tensors.lookup_call.Feature` has fields of these names.
"""
_FIELDS: Final[dict[str, Any]] = {name: (one.annotation, one) for name, one in LookupFeature.model_fields.items()}
LookupFeatureSettings: Any = create_model(
    "LookupFeatureSettings",
    __base__=RequestModel,
    __module__=__name__,
    __doc__="A feature without its arrays.",
    **{name: _FIELDS[name] for name in _BESIDE},
)


class _LookupFields(RequestModel):
    """The members beside `features`, which stands before them where a class has them."""

    concat: JsonBool = Field(
        True,
        description="Whether the features' outputs are joined on axis 1, which needs equal types and numbers of rows; "
        "false for an output for each, in `outputs`.",
    )
    out_of_bounds: OutOfBounds = Field(
        "error",
        description="What becomes of an index that is out of bounds: an error; the nearest valid one (`clip`); the "
        "index modulo the number of rows (`wrap`); or a row of the fill value stands for it, in a bag too.",
    )
    fill_value: AnyJson = Field(
        ABSENT,
        description="With `out_of_bounds` or `missing` fill, what rows are filled with, one value in the form of "
        "`values`; if left out 0, false or an empty string.",
    )
    output_dtype: Rounded = ABSENT
    output_encoding: Encoding = Field("values", description="Form of the outputs' items.")


class LookupRequest(_LookupFields):
    """A lookup: rows of many resident tensors in one request, single or as pooled bags."""

    features: Annotated[list[LookupFeature], Field(min_length=1), FailFast(), FEATURES]


class LookupParameters(_LookupFields):
    """What a lookup says beside its arrays, in the binary formats."""

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
    """Raise invalid_field for `include_last_offset` of a feature without bags, which stands at `pointer`."""
    if feature.include_last_offset and feature.pooling == "none":
        raise invalid_field(
            f"{pointer}/include_last_offset",
            "include_last_offset is for pooling sum, mean or max, and this feature has none",
            f"Leave out 'include_last_offset' at {pointer}, or give the feature a 'pooling', such as 'sum'.",
        )


def check_arrays_given(pooling: Pooling, given: Sequence[str], pointer: Callable[[str], str]) -> None:
    """Whether a feature has the arrays that its pooling asks for: `given` are the names of those that it has, and
    `pointer` says where one is or would be. Raises invalid_field.
    """
    if pooling == "none":
        for name in ("offsets", "weights"):
            if name in given:
                which = "sum" if name == "weights" else "sum, mean or max"
                raise invalid_field(
                    pointer(name),
                    f"{name} are for pooling {which}, and this feature has none",
                    f"Leave out '{name}' at {pointer(name)}, or give the feature a 'pooling', such as 'sum'.",
                )
        return
    if "offsets" not in given:
        at = pointer("offsets")
        raise invalid_field(
            at,
            f"offsets is missing, which pooling {pooling} needs",
            f"Add 'offsets' at {at}: for each bag the position of its first index, such as [0] for one bag of all.",
        )
    if "weights" in given and pooling != "sum":
        at = pointer("weights")
        raise invalid_field(at, f"weights are for pooling sum, not {pooling}", f"Leave out 'weights' at {at}.")
