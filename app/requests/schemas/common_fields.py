"""Fields that the requests of several families share.

Each model sets their order and their defaults.

Some fields of a gather depend on the dialect: some dialects require a field, have an additional field, or change a
default. A request model covers all dialects of an operator, so these rules are applied after the model has validated
the request.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from app.errors import invalid_field
from app.requests.schemas.member_types import ABSENT, INT64, JSON_VALUE, JsonBool, JsonInteger, TensorName, one_of
from app.tensors.by_key import Missing
from app.tensors.gather_call import Device, Encoding, OutOfBounds, OutputDType
from app.tensors.operator_signature import Reduction, Signature

RESIDENT: Final = "Name of a resident tensor: `NAME` for its current version, `NAME@7` for version 7, or an alias"
"""OpenAPI's description of a member that holds the name of a resident tensor."""
OUT_OF_BOUNDS_DESCRIPTION: Final = (
    "How to treat an index component that is out of bounds after the dialect's own wrap: report an error; use the "
    "nearest valid index (`clip`) or the index modulo the size of the axis (`wrap`); or fill its whole slice (`fill`)."
)
FILL_VALUE_DESCRIPTION: Final = (
    "The value for slices filled by `out_of_bounds` fill. If omitted: 0, false or an empty string."
)
_OUTPUT_DTYPE: Final = (
    "Element type of the output, if the data has a float type. Each item is rounded once, half to even. If omitted: "
    "the data's type."
)
_REDUCTION: Final = (
    "How to combine an update with the current value. Updates are applied in row-major order; with `none`, the last "
    "update of a position replaces the value. Types bool, string and complex support `none` only."
)

ResidentName = Annotated[TensorName, Field(description=f"{RESIDENT}.")]
AnyDevice = Annotated[Device, Field(description="Device to run on; `auto` lets the service choose.")]
OutputEncoding = Annotated[Encoding, Field(description="Encoding of the output's items.")]
Mode = Annotated[OutOfBounds, Field(description=OUT_OF_BOUNDS_DESCRIPTION)]
Rounded = Annotated[OutputDType, Field(description=_OUTPUT_DTYPE)]
Combined = Annotated[Reduction, Field(description=_REDUCTION)]
AnyJson = Annotated[Any, WithJsonSchema({})]


def dialect_field(dialects: Any, default: str) -> Any:
    """Return the type and the `dialect` field for requests that may specify one of `dialects`."""
    return one_of(dialects), Field(default, description="Specification and version whose rules apply.")


KEYS_DESCRIPTION: Final = (
    "Row keys, instead of `indices`, for a table that has keys. They must have the type of the table's keys (int64, "
    "uint64 or string); int32 is accepted for int64. The output has the same shape as for indices of this shape."
)
_MISSING: Final = (
    "With `keys`: how to treat a key that the table does not have. `error` reports it, `fill` returns a row of "
    "`fill_value`, and `row` returns the row given in `missing_row`."
)
MISSING_ROW_DESCRIPTION: Final = (
    'With `missing` row: the row to return for missing keys, by position, such as 0, or by key, such as {"key": 7}.'
)
_FOUND: Final = "With `keys`: whether to also return `found`, one bool per key, true if the table has the key."

MissingMode = Annotated[Missing, Field(description=_MISSING)]
RowForMissing = Annotated[AnyJson, JSON_VALUE, Field(description=MISSING_ROW_DESCRIPTION)]
AsksForFound = Annotated[JsonBool, Field(description=_FOUND)]
KEY_MEMBERS: Final[dict[str, Any]] = {
    "missing": (MissingMode, "error"),
    "missing_row": (RowForMissing, ABSENT),
    "found": (AsksForFound, False),
}
"""The members that go with `keys` in a model. `model_fields_set` says which of them a request has."""


_BATCH_DIMS: Final = (
    "number of leading dimensions of data and indices that are batches. If negative, it is counted from the rank "
    "of indices."
)


def apply_dialect(signature: Signature, fields: Any, pointer: str) -> tuple[int, OutOfBounds]:
    """Return the additional `batch_dims` (0 if the dialect has none) and the mode for out-of-bounds indices.

    `fields` are those of a valid gather at `pointer`. Raises invalid_field.
    """
    mode = fields.out_of_bounds
    if not signature.dialect_fields:
        return 0, mode
    batch_dims = further_batch_dims(signature, fields, pointer)
    if mode is ABSENT:
        own = signature.dialect_fields.get(fields.dialect)
        mode = "fill" if own is not None and own.fills else "error"
    return batch_dims, mode


def further_batch_dims(signature: Signature, fields: Any, pointer: str) -> int:
    """Return the additional `batch_dims`, or 0 if the dialect has none. Raises invalid_field."""
    if not signature.dialect_fields:
        return 0
    dialect = fields.dialect
    own = signature.dialect_fields.get(dialect)
    batch_dims: Any = getattr(fields, "batch_dims", ABSENT)  # the field exists only if a dialect of the operator has it
    if own is None or not own.batch_dims:
        if batch_dims is not ABSENT:
            having = " and ".join(_with_batch_dims(signature))
            raise invalid_field(
                f"{pointer}/batch_dims",
                f"{signature.operator} has batch_dims only in the dialect {having}, but this is {dialect}",
                f"Leave out 'batch_dims', or use the dialect '{having}'.",
            )
        batch_dims = 0
    if own is not None and own.needs_parameter and "parameter" not in fields.model_fields_set:
        name = signature.parameters[0].name
        raise invalid_field(
            f"{pointer}/{name}",
            f"{name} is missing, which {dialect} requires",
            f"Add '{name}' at {pointer}/{name}, such as 0.",
        )
    return 0 if batch_dims is ABSENT else int(batch_dims)


def dialect_fields(signature: Signature) -> dict[str, Any]:
    """Return the fields in which the dialects of an operator differ."""
    fields: dict[str, Any] = {}
    having = _with_batch_dims(signature)
    if having:
        described = f"In the dialect {' or '.join(having)} only: {_BATCH_DIMS} If omitted: 0."
        fields["batch_dims"] = JsonInteger, Field(ABSENT, description=described, json_schema_extra=INT64)
    filling = [name for name, own in signature.dialect_fields.items() if own.fills]
    if filling:
        of = f"{' or '.join(filling)} of {signature.operator}"
        described = f"{OUT_OF_BOUNDS_DESCRIPTION} If omitted: `fill` in the dialect {of}, otherwise `error`."
        fields["out_of_bounds"] = OutOfBounds, Field(ABSENT, description=described)
    return fields


def parameter_note(signature: Signature) -> str:
    """Return the sentence about dialects that require the parameter."""
    needing = [name for name, own in signature.dialect_fields.items() if own.needs_parameter]
    return f" Required in the dialect {' or '.join(needing)}." if needing else ""


def _with_batch_dims(signature: Signature) -> list[str]:
    return [name for name, own in signature.dialect_fields.items() if own.batch_dims]
