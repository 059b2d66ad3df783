"""What a dialect makes of a gather's fields: one that it needs, one it alone has, and one with a default of its own.

The models of requests hold for all dialects of an operator, so this is looked at once a request has been validated.
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
    "leading dimensions of data and indices that are batches; negative counts from the rank of indices."
)


def apply_dialect(signature: Signature, fields: Any, pointer: str) -> tuple[int, OutOfBounds]:
    """`batch_dims` beside the operator's own parameter, 0 if there is none, and what becomes of indices out of bounds.

    `fields` are those of a valid gather, members of what stands at `pointer`. Raises invalid_field.
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
    """`batch_dims` beside the operator's own parameter, as `apply_dialect` has it. Raises invalid_field."""
    if not signature.dialect_fields:
        return 0
    dialect = fields.dialect
    own = signature.dialect_fields.get(dialect)
    batch_dims: Any = getattr(fields, "batch_dims", ABSENT)  # a field only if a dialect of the operator has it
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
    """The fields of a model that dialects of an operator differ in: none if they do not differ."""
    fields: dict[str, Any] = {}
    having = _with_batch_dims(signature)
    if having:
        described = f"In the dialect {' or '.join(having)} only: {_BATCH_DIMS} 0 if left out."
        fields["batch_dims"] = JsonInteger, Field(ABSENT, description=described, json_schema_extra=INT64)
    filling = [name for name, own in signature.dialect_fields.items() if own.fills]
    if filling:
        of = f"{' or '.join(filling)} of {signature.operator}"
        described = f"{OUT_OF_BOUNDS_DESCRIPTION} If left out: fill in the dialect {of}, else error."
        fields["out_of_bounds"] = OutOfBounds, Field(ABSENT, description=described)
    return fields


def parameter_note(signature: Signature) -> str:
    """What the description of the parameter says of dialects that need it."""
    needing = [name for name, own in signature.dialect_fields.items() if own.needs_parameter]
    return f" The dialect {' or '.join(needing)} needs it." if needing else ""


def _with_batch_dims(signature: Signature) -> list[str]:
    return [name for name, own in signature.dialect_fields.items() if own.batch_dims]
