"""The row of an error in the catalogue: its statuses, its texts and an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """A command that provokes the error in a service on 127.0.0.1:8080, and the response. A test runs the command.

    `members` are the response's members other than `detail` and `hint`. If `hint` is None, the hint is built from these
    members. `about` says what the command presupposes, if anything.
    """

    command: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    hint: str | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A code: its texts, an example, its status over HTTP and the name of its status over gRPC.

    `title` is the title in the error body; `meaning` and `fix` (how to fix the request) are shown on the page of the
    code. `hints` are for errors that do not have their own hint. `hints.py` uses the first one for which the error has
    all facts in braces. The last hint needs no facts.
    """

    title: str
    meaning: str
    fix: str
    hints: tuple[str, ...]
    example: Example
    status: int = 422
    grpc_status: str = "INVALID_ARGUMENT"
