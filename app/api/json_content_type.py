"""The Content-Type of JSON bodies: which media type and which charsets are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.api.error_responses import JSON
from app.errors import GatherError
from app.near_name import near_name

_FORM: Final = b"application/x-www-form-urlencoded"
_MEND: Final = "Send 'Content-Type: application/json' with JSON in UTF-8, with curl by -H."


def check_json_type(content_type: bytes, also_read: Iterable[bytes] = ()) -> None:
    """Raises unsupported_media_type unless `content_type` is JSON in UTF-8; an empty one counts as none.

    `also_read` are the media types that the route reads, with or without JSON.
    """
    kind, _, parameters = content_type.partition(b";")
    kind = kind.strip().lower()
    if kind in (JSON, b""):
        charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
        if not charset or charset in (b"charset=utf-8", b"charset=utf8") or not charset.startswith(b"charset="):
            return
    shown = content_type.decode("latin-1")
    others = sorted(other.decode() for other in also_read if other != JSON)
    read = " and ".join((JSON.decode(), *others)) + (" are" if others else " is")
    hint = "; with curl add -H 'Content-Type: application/json' (curl -d alone sends a form)" if kind == _FORM else ""
    near = near_name(kind.decode("latin-1"), others)
    mend = _MEND if near is None else f"Send 'Content-Type: {near}' if the body is that."
    raise GatherError("unsupported_media_type", f"{shown!r} is not read here; {read}{hint}", hint=mend)
