"""The query of a safetensors request to a document: what JSON has in the body, but for the arrays."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from app.requests.query_string import read_query
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.query_fields import ExplainQuery, query_fields_of, value_of_text


def read_document(query: bytes, model: type[BaseModel]) -> tuple[dict[str, Any], str]:
    """The fields of a query by name, with the values that their texts stand for, and the text of `explain`.

    Raises invalid_field for one that a request of the model does not have, or that is given twice.
    """
    if not query:
        return {}, "false"
    known = query_fields_of(model)
    document: dict[str, Any] = {
        name: value_of_text(known[name], text) for name, text in read_query(query, known).items()
    }
    return document, document.pop("explain", "false")


def explains(text: str) -> bool:
    """Tell whether `explain` is true. Raises invalid_field for a text that is neither true nor false."""
    fields = {"explain": text}
    try:
        return ExplainQuery.model_validate(fields).explain == "true"
    except ValidationError as refusal:
        raise InvalidFields(refusal, ExplainQuery, fields, "/query").first() from None
