"""JSON that may quote text from a client. orjson refuses lone surrogates, which a client may send as `\\ud800`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def dump(body: Mapping[str, Any]) -> bytes:
    """Return the UTF-8 bytes of a JSON object. Lone surrogates in strings become replacement characters."""
    try:
        return orjson.dumps(body)
    except TypeError:
        return orjson.dumps(_replace_surrogates(body))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_replace_surrogates(key): _replace_surrogates(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(member) for member in value]
    return value
