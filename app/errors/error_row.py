"""The row of an error in the catalogue: its statuses, its texts and an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """A command that gets the error from a service on 127.0.0.1:8080, and the answer. A test runs it.

    `members` are the answer's members other than `detail` and `hint`. If `hint` is None, the row makes the hint from
    these members. `about` says what the command presupposes, if anything.
    """

    command: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    hint: str | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A code: its texts, an example, its status over HTTP and the name of its status over gRPC.

    `title` heads the error body; `meaning` and `fix` (how to fix the request) are on the page of the code. `hints`
    serve errors without a hint of their own: `hints.py` takes the first whose facts, in braces, the error has. The last
    needs no facts.
    """

    title: str
    meaning: str
    fix: str
    hints: tuple[str, ...]
    example: Example
    status: int = 422
    grpc_status: str = "INVALID_ARGUMENT"
