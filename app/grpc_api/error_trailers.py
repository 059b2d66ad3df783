"""The trailers of a call that ends with an error: its status message and the problem body."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from app.api.error_responses import problem
from app.errors import GatherError
from app.surrogate_safe_json import dump

PROBLEM: Final = "gathernd-problem-bin"
"""Name of the trailing metadata that holds the problem body."""
MOST_PROBLEM_BYTES: Final = 4096
_MOST_DETAIL: Final = 512
"""Maximum number of characters of an error's detail in the status message and in a shortened problem body.

Together, the two stay below 8 KiB, the default limit on metadata in clients.
"""

_MOST_SENT: Final = 1536
"""Maximum number of bytes of a status message after percent-encoding."""
_LONGEST_SENT: Final = 12
"""Maximum number of bytes of a percent-encoded character."""


def problem_bytes(error: GatherError, request_id: str) -> bytes:
    """Return the problem body as JSON of at most MOST_PROBLEM_BYTES.

    If the body is too long, drops entries of `errors` first, and then shortens texts.
    """
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
    """Return the error's detail, shortened for the status message."""
    text = str(_cut(error.detail, _MOST_DETAIL))
    if len(quote(text, " ", errors="replace")) > _MOST_SENT:
        text = str(_cut(error.detail, _MOST_SENT // _LONGEST_SENT))
    return text.encode("utf-8", "replace").decode()


def _cut(value: Any, most: int) -> Any:
    return value[:most] + "…" if isinstance(value, str) and len(value) > most else value
