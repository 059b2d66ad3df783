"""Fields of a gather that depend on the dialect: some require a field, have a further one, or change a default.

A request model covers all dialects of an operator, so these rules are applied after its validation.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from app.errors import invalid_field
from app.requests.schemas.common_fields import OUT_OF_BOUNDS_DESCRIPTION
from app.requests.schemas.member_types import ABSENT, INT64, JsonInteger
from app.tensors.gather_call import OutOfBounds
from app.tensors.operator_signature import Signature

_BATCH_DIMS: Final = (
    "number of leading dimensions of data and indices that are batches. Negative: counted from the rank of indices."
)


def apply_dialect(signature: Signature, fields: Any, pointer: str) -> tuple[int, OutOfBounds]:
    """Return the additional `batch_dims` (0 if the dialect has none) and the mode for indices out of bounds.

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
                f"{signature.operator} has batch_dims in the dialect {having} only, and this is {dialect}",
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
        described = f"In the dialect {' or '.join(having)} only: {_BATCH_DIMS} If left out: 0."
        fields["batch_dims"] = JsonInteger, Field(ABSENT, description=described, json_schema_extra=INT64)
    filling = [name for name, own in signature.dialect_fields.items() if own.fills]
    if filling:
        of = f"{' or '.join(filling)} of {signature.operator}"
        described = f"{OUT_OF_BOUNDS_DESCRIPTION} If left out: `fill` in the dialect {of}, otherwise `error`."
        fields["out_of_bounds"] = OutOfBounds, Field(ABSENT, description=described)
    return fields


def parameter_note(signature: Signature) -> str:
    """Return the sentence about dialects that require the parameter."""
    needing = [name for name, own in signature.dialect_fields.items() if own.needs_parameter]
    return f" Required in the dialect {' or '.join(needing)}." if needing else ""


def _with_batch_dims(signature: Signature) -> list[str]:
    return [name for name, own in signature.dialect_fields.items() if own.batch_dims]
