"""Reads the query of a request: `explain` and, for a binary body, the fields that a JSON request has in its body."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from app.errors import GatherError, invalid_field
from app.json_text.lossless_json import shown
from app.near_name import near_name, replacement_text, shorten
from app.requests import split_query_string
from app.requests.read_call import FAMILIES
from app.requests.schemas.field_hints import allowed_hint
from app.requests.schemas.query_fields import field_names, query_fields_of, value_of_text
from app.requests.split_query_string import escape, query_fields
from app.tensors.operator_signature import Signature

_EXPLAIN: Final = "explain"
_AT_EXPLAIN: Final = f"/query/{_EXPLAIN}"


def read_query(query: bytes, row: Signature) -> bool:
    """Read `explain`, the only query field that a JSON request may have. Returns its value.

    Raises invalid_field. For a scatter into a resident tensor, every field is invalid.
    """
    if row.kind == "table_scatter":
        refuse_query(query, row)
        return False
    return read_explain(query, FAMILIES[row.kind].model(row))


def refuse_query(query: bytes, row: Signature) -> None:
    """Raise invalid_field at the first query field: a JSON scatter into a resident tensor does not accept any."""
    body = FAMILIES[row.kind].model(row)
    for name, _ in query_fields(query):
        if name == _EXPLAIN:
            raise invalid_field(_AT_EXPLAIN, "explain is not supported here", "Leave 'explain' out of the query.")
        error = _not_in_query(name, body, "the body")
        if name in query_fields_of(body):
            error.hint = (
                f"Move '{name}' from the query into the body, or send 'Content-Type: application/x-safetensors' with a "
                "body of that format."
            )
        raise error


def read_explain(query: bytes, body: type[BaseModel], where: str = "the body") -> bool:
    """Read `explain`, the only query field that is allowed if the body contains the other fields.

    `body` is the model of the body's fields, and `where` is the phrase in errors for where these fields belong. Raises
    invalid_field if there is any other field, if `explain` is repeated, or if its value is neither true nor false.
    """
    explain: bool | None = None
    for name, value in query_fields(query):
        if name != _EXPLAIN:
            raise _not_in_query(name, body, where)
        if explain is not None:
            raise invalid_field(_AT_EXPLAIN, "explain was sent twice", "Give 'explain' once.")
        explain = parse_explain(value)
    return explain is True


def read_document(query: bytes, model: type[BaseModel]) -> tuple[dict[str, Any], str]:
    """Parse the fields of a query. Returns the fields by name, and the text of `explain`.

    Raises invalid_field if a field is unknown or repeated.
    """
    if not query:
        return {}, "false"
    known = query_fields_of(model)
    fields = split_query_string.read_query(query, known)
    document: dict[str, Any] = {name: value_of_text(known[name], text) for name, text in fields.items()}
    return document, document.pop(_EXPLAIN, "false")


def parse_explain(text: str) -> bool:
    """Parse the text of `explain`. Raises invalid_field for a text that is neither true nor false."""
    allowed = "true", "false"
    if text not in allowed:
        hint = allowed_hint(_EXPLAIN, text, allowed, _AT_EXPLAIN)
        raise invalid_field(_AT_EXPLAIN, f"explain must be one of {', '.join(allowed)}", hint)
    return text == "true"


def _not_in_query(name: str, body: type[BaseModel], where: str) -> GatherError:
    given = shorten(str(shown(name)))
    if near_name(name, (_EXPLAIN,)) is not None:
        hint = f"{replacement_text(given, _EXPLAIN)} in the query."
    elif name in field_names(body):
        hint = f"Move '{given}' from the query into {where}."
    else:
        hint = f"Leave out '{given}' in the query, since this request must have all its fields in {where}."
    return GatherError(
        "invalid_field",
        f"{shown(name)!r} was sent in the query, but this request must have all its fields in {where}",
        pointer=f"/query/{escape(name)}",
        hint=hint,
    )
