"""The query of a JSON request: its fields stand in the body, so that only `explain` may stand here."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from app.errors import GatherError, invalid_field
from app.near_name import instead_of, near_name, shorten
from app.tensors.buffer_type import Buffer
from app.tensors.gather_call import Call, Encoding
from app.tensors.operator_signature import OWN_FIELDS, Signature
from app.tensors.shape_limits import Limits
from app.wire.json.gather_messages import read_call
from app.wire.json.lossless_json import shown
from app.wire.little_endian_items import Charge
from app.wire.parse_query_string import escape, query_fields
from app.wire.request_schemas.invalid_fields import InvalidFields
from app.wire.request_schemas.query_fields import ExplainQuery, field_names

_IN_BODIES: Final = frozenset(
    (*OWN_FIELDS, "concat", "data_shape", "device", "dialect", "lda_coeff", "output_encoding", "sparse")
)
"""Members of the bodies of native requests that a query may have with another body."""


def read_request(
    body: Buffer, query: bytes, signature: Signature, limits: Limits, charge: Charge | None = None
) -> tuple[Call, Encoding]:
    """The call that a body and the query of its URL ask for; see `gather_messages.read_call`."""
    try:
        found = read_call(body, signature, limits, charge)
    except GatherError as error:
        # What is not JSON at all comes first; every other fault comes after a field that may not be there.
        if query and error.code != "malformed_request":
            read_explain(query)
        raise
    if query:
        found[0].explain = read_explain(query)
    return found


def refuse_query(query: bytes) -> None:
    """Raises invalid_field at the first field of a query, for routes that have none."""
    for name, _ in query_fields(query):
        if name in field_names(ExplainQuery):
            raise invalid_field(f"/query/{name}", f"{name} is not offered here", f"Leave '{name}' out of the query.")
        raise _not_in_query(name)


def read_explain(query: bytes) -> bool:
    """Whether the query of a gather in JSON asks for an explanation, the only field that it may have.

    Raises invalid_field at the first other field, for `explain` given twice, and for a value other than true and false.
    """
    explain: ExplainQuery | None = None
    for name, value in query_fields(query):
        if name not in field_names(ExplainQuery):
            raise _not_in_query(name)
        if explain is not None:
            raise invalid_field("/query/explain", "explain is given twice", "Give 'explain' once.")
        fields = {name: value}
        try:
            explain = ExplainQuery.model_validate(fields)
        except ValidationError as refusal:
            raise InvalidFields(refusal, ExplainQuery, fields, "/query").first() from None
    return explain is not None and explain.explain == "true"


def _not_in_query(name: str) -> GatherError:
    given = shorten(str(shown(name)))
    near = near_name(name, field_names(ExplainQuery))
    if near is not None:
        hint = f"{instead_of(given, near)} in the query."
    elif name in _IN_BODIES:
        hint = f"Move '{given}' from the query into the body."
    else:
        hint = f"Leave out '{given}' in the query, since a JSON request has all its fields in the body."
    return GatherError(
        "invalid_field",
        f"{shown(name)!r} is given in the query; a JSON request has all its fields in the body",
        pointer=f"/query/{escape(name)}",
        hint=hint,
    )
