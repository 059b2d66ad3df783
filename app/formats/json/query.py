"""The query of a JSON request: its fields stand in the body, so that only `explain` may stand here."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from app.errors import GatherError, invalid_field
from app.json_text.lossless_json import shown
from app.near_name import instead_of, near_name, shorten
from app.requests.query_string import escape, query_fields
from app.requests.read_call import FAMILIES
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.query_fields import ExplainQuery, field_names, query_fields_of
from app.tensors.operator_signature import Signature


def read_query(query: bytes, row: Signature) -> bool:
    """Tell whether the query of a JSON request asks for an explanation, the only field that it may have.

    Raises invalid_field, for a scatter into a resident tensor at any field.
    """
    if row.kind == "table_scatter":
        refuse_query(query, row)
        return False
    return read_explain(query, FAMILIES[row.kind].model(row))


def refuse_query(query: bytes, row: Signature) -> None:
    """Raise invalid_field at the first field of the query of a scatter into a resident tensor in JSON."""
    body = FAMILIES[row.kind].model(row)
    for name, _ in query_fields(query):
        if name in field_names(ExplainQuery):
            raise invalid_field(f"/query/{name}", f"{name} is not offered here", f"Leave '{name}' out of the query.")
        error = _not_in_query(name, body, "the body")
        if name in query_fields_of(body):
            error.hint = (
                f"Move '{name}' from the query into the body, or send 'Content-Type: application/x-safetensors' with a "
                "body of that format."
            )
        raise error


def read_explain(query: bytes, body: type[BaseModel], where: str = "the body") -> bool:
    """Tell whether a query asks for an explanation, the only field that it may have beside a body with fields.

    `body` has the fields that stand in the body, and `where` says where they stand.

    Raises invalid_field at the first other field, for `explain` given twice, and for a value other than true and false.
    """
    explain: ExplainQuery | None = None
    for name, value in query_fields(query):
        if name not in field_names(ExplainQuery):
            raise _not_in_query(name, body, where)
        if explain is not None:
            raise invalid_field("/query/explain", "explain is given twice", "Give 'explain' once.")
        fields = {name: value}
        try:
            explain = ExplainQuery.model_validate(fields)
        except ValidationError as refusal:
            raise InvalidFields(refusal, ExplainQuery, fields, "/query").first() from None
    return explain is not None and explain.explain == "true"


def _not_in_query(name: str, body: type[BaseModel], where: str) -> GatherError:
    given = shorten(str(shown(name)))
    near = near_name(name, field_names(ExplainQuery))
    if near is not None:
        hint = f"{instead_of(given, near)} in the query."
    elif name in field_names(body):
        hint = f"Move '{given}' from the query into {where}."
    else:
        hint = f"Leave out '{given}' in the query, since this request has all its fields in {where}."
    return GatherError(
        "invalid_field",
        f"{shown(name)!r} is given in the query; this request has all its fields in {where}",
        pointer=f"/query/{escape(name)}",
        hint=hint,
    )
