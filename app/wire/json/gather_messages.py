"""The JSON of an operator's answers."""

from __future__ import annotations

from app.wire.json.write_values import is_long, write_answer

__all__ = [
    "is_long",
    "write_answer",
]
