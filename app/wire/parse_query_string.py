"""The fields of a URL's query, parsed one after the other: who refuses one has not paid for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_plus

from app.errors import invalid_field

_FIELD: Final = re.compile(rb"[^&]+")
_MOST_NAME: Final = 1 << 10
_MOST_ESCAPES: Final = 1 << 11


def query_fields(query: bytes) -> Iterator[tuple[str, str]]:
    """Name and value of each field, as `urllib.parse.parse_qsl` reads them; of a very long name the beginning.

    Raises invalid_field for a value with more than 2,048 escapes.
    """
    for match in _FIELD.finditer(query):
        raw, _, value = match[0].decode("latin-1").partition("=")
        name = unquote_plus(raw[:_MOST_NAME])
        if value.count("%") > _MOST_ESCAPES:
            detail = f"the value of {name[:64]!a} has more than {_MOST_ESCAPES} escapes"
            raise invalid_field(f"/query/{escape(name)}", detail)
        yield name, unquote_plus(value)


def escape(name: str) -> str:
    """`name` as one step of a JSON pointer."""
    return name.encode("utf-8", "replace").decode().replace("~", "~0").replace("/", "~1")
