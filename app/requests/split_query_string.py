"""Parses the fields of a URL's query lazily, so that a refused field ends the parsing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import unquote_plus

from app.errors import invalid_field
from app.json_text.lossless_json import shown
from app.requests.schemas.field_hints import name_hint

_FIELD: Final = re.compile(rb"[^&]+")
_MOST_NAME: Final = 1 << 10
_MOST_ESCAPES: Final = 1 << 11


def query_fields(query: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each field, parsed like `urllib.parse.parse_qsl`. Very long names are truncated.

    Raises invalid_field for a value with more than 2,048 escapes.
    """
    for match in _FIELD.finditer(query):
        raw, _, value = match[0].decode("latin-1").partition("=")
        name = unquote_plus(raw[:_MOST_NAME])
        if value.count("%") > _MOST_ESCAPES:
            detail = f"the value of {name[:64]!a} has more than {_MOST_ESCAPES} escapes"
            raise invalid_field(f"/query/{escape(name)}", detail)
        yield name, unquote_plus(value)


def read_query(query: bytes, known: Collection[str]) -> dict[str, str]:
    """Return the fields of a query by name. Raises invalid_field for an unknown or repeated field."""
    fields: dict[str, str] = {}
    for name, value in query_fields(query):
        if name not in known:
            listed = f"it may have {', '.join(known)}" if known else "it has none"
            detail = f"{shown(name)!a} is not a field of this query; {listed}"
            raise invalid_field(f"/query/{escape(name)}", detail, name_hint(name, known, fields, " in the query"))
        if name in fields:
            raise invalid_field(f"/query/{name}", f"{name} is given twice", f"Give '{name}' once in the query.")
        fields[name] = value
    return fields


def escape(name: str) -> str:
    """Escape `name` for use as one segment of a JSON pointer."""
    return name.encode("utf-8", "replace").decode().replace("~", "~0").replace("/", "~1")
