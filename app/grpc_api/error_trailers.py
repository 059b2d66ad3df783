"""The trailers of a call that ends with an error: its status message, and the problem body beside it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from app.api.error_responses import problem
from app.errors import GatherError
from app.surrogate_safe_json import dump

PROBLEM: Final = "gathernd-problem-bin"
"""The trailing metadata that has the problem body."""
MOST_PROBLEM_BYTES: Final = 4096
_MOST_DETAIL: Final = 512
"""Characters of an error's detail in the status message and in a problem body that is too long: together with the
body they stay below 8 KiB, the most bytes of metadata that clients take by default."""

_MOST_SENT: Final = 1536
"""Bytes of a status message as it is sent, percent-encoded."""
_LONGEST_SENT: Final = 12
"""So many bytes a character has then at most."""


def problem_bytes(error: GatherError, request_id: str) -> bytes:
    """The problem body as JSON of at most MOST_PROBLEM_BYTES: places and then the ends of texts are left out."""
    body: dict[str, Any] = problem(error, request_id)
    text = dump(body)
    while len(text) > MOST_PROBLEM_BYTES and body.get("errors"):
        body["errors"] = body["errors"][:-1]
        text = dump(body)
    for most in (_MOST_DETAIL, 128, 16):
        if len(text) <= MOST_PROBLEM_BYTES:
            break
        body = {name: _cut(value, most) for name, value in body.items() if name != "errors"}
        text = dump(body)
    return text


def status_message(error: GatherError) -> str:
    """The error's detail as the status has it."""
    text = str(_cut(error.detail, _MOST_DETAIL))
    if len(quote(text, " ", errors="replace")) > _MOST_SENT:
        text = str(_cut(error.detail, _MOST_SENT // _LONGEST_SENT))
    return text.encode("utf-8", "replace").decode()


def _cut(value: Any, most: int) -> Any:
    return value[:most] + "…" if isinstance(value, str) and len(value) > most else value
