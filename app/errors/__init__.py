"""The one exception that carries every error, and the closed list of its codes.

Every refused request raises a `GatherError` whose `code` has a row in `CATALOGUE`. The row holds the error's statuses,
what it means, how to fix the request, and an example. `hints.py` builds the hint for an error that has no hint of its
own. The bodies of responses, the pages at /errors/{code}, OpenAPI and the labels of metrics are built from the rows.
Tests check that `docs/reference/errors.md` and the classes of the Python client match them. Statuses are plain numbers
and names, because the code below the transports does not depend on HTTP or gRPC.

    GatherError
      code      the code of the catalogue's row
      detail    one sentence about this request
      rule      the rule of the operator that the request breaks, with the clause of the specification, or None
      places    where in the request, at most ten
      total     how many places there are in all
      facts     other members of the body, such as `limit` and `maximum`
      hint      one sentence on how to fix this request; None to use the catalogue's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import key_error_rows, operator_error_rows, service_error_rows, transfer_error_rows
from app.errors.error_row import ErrorRow

Code = (
    transfer_error_rows.TransferCode
    | operator_error_rows.OperatorCode
    | key_error_rows.KeyCode
    | service_error_rows.ServiceCode
)
CATALOGUE: Final[Mapping[Code, ErrorRow]] = dict(
    [
        *transfer_error_rows.ROWS.items(),
        *operator_error_rows.ROWS.items(),
        *key_error_rows.ROWS.items(),
        *service_error_rows.ROWS.items(),
    ]
)
CODES: Final[tuple[Code, ...]] = tuple(CATALOGUE)
REPORTED_PLACES: Final = 10
LONG_TEXT: Final = 1 << 20
"""Size in bytes of a text above which an error in it reports the position of the wrong byte (`offset`)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of an operator. `clause` is its number in the specification, or None if the rule has no number."""

    dialect: str
    clause: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """One invalid place in the request. Members that do not apply are None; so is `allowed` on an axis of size 0.

    `offset` is a byte position in a long text.
    """

    pointer: str
    position: tuple[int, ...] | None = None
    value: int | float | str | None = None
    axis: int | None = None
    size: int | None = None
    allowed: tuple[int, int] | None = None
    offset: int | None = None


class GatherError(Exception):
    """A refused request; `code` is from the catalogue."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        pointer: str | None = None,
        places: Sequence[Place] = (),
        total: int | None = None,
        rule: Rule | None = None,
        facts: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code: Code = code
        self.detail = detail
        self.places: tuple[Place, ...] = tuple(places) if pointer is None else (Place(pointer),)
        self.total = len(self.places) if total is None else total
        self.rule = rule
        self.facts: Mapping[str, Any] = facts or {}
        self.retry_after = retry_after
        self.hint = hint


def invalid_field(pointer: str, detail: str, hint: str | None = None) -> GatherError:
    """Return the error for a field that is missing or unknown, or whose value is not allowed."""
    return GatherError("invalid_field", detail, pointer=pointer, hint=hint)
