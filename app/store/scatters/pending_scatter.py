"""A scatter on its way to the disk: what it changes, and its result once it has been carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.catalogue.conditions import ALWAYS, Conditions
from app.store.row_counts import RowCounts
from app.tensors.operator_signature import Reduction
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


class Scattered(NamedTuple):
    """What a scatter is answered: the ETag of the content after it, and the number of the version that it changed.

    `repeated` says that it was carried out before, for a request with the same Idempotency-Key, and not again. `counts`
    is for upserts and removals by key; a repeated request gets those of the first one.
    """

    etag: str
    version: int
    repeated: bool = False
    counts: RowCounts | None = None


class ContentReplaced(Exception):
    """The tensor has been replaced since the scatter was validated; it is to be validated again."""


@dataclass(frozen=True, slots=True)
class ScatterChange:
    """A scatter validated against the content of id `content`: update number i goes to row `rows[i]`.

    `updates` have `width` items a row. `key` is the Idempotency-Key, `digest` identifies the request. If `rows` depend
    on how many rows a table with keys has, as negative indices do, `of_rows` is that number.
    """

    content: str
    rows: NDArray[np.int64]
    updates: Tensor
    width: int
    reduction: Reduction
    key: str | None = None
    digest: str = ""
    of_rows: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedChange:
    """An upsert into the table whose content has id `content`, or a removal of rows if `updates` is None.

    `keys` is of one dimension and has the type of the table's keys. `updates` have `width` items for each key, those of
    a whole row. An upsert combines the rows of known keys with their updates by `reduction`, and appends a row for each
    new key, which starts from zeros. A removal moves the last rows into the gaps, and counts keys that are missing.
    `key` is the Idempotency-Key, `digest` identifies the request.
    """

    content: str
    keys: Tensor
    updates: Tensor | None = None
    width: int = 0
    reduction: Reduction = "none"
    key: str | None = None
    digest: str = ""


class PendingScatter:
    """A scatter that waits to be carried out: a future whose result is a `Scattered`, or an error.

    `wake` is called, from any thread, when its turn has come (see `group_commit`); `is_leader` says that its turn has
    come when it is queued.
    """

    __slots__ = ("_outcome", "change", "conditions", "done", "is_leader", "wake")

    def __init__(
        self,
        change: ScatterChange | KeyedChange,
        conditions: Conditions = ALWAYS,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.change = change
        self.conditions = conditions
        self.wake = wake
        self.done = self.is_leader = False
        self._outcome: Scattered | BaseException | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its row numbers or keys, and of its updates; strings count with their frames."""
        change = self.change
        named = change.rows.nbytes if isinstance(change, ScatterChange) else _nbytes(change.keys)
        return named + (0 if change.updates is None else _nbytes(change.updates))

    @property
    def scattered(self) -> Scattered | None:
        """The result, None before it is done and after an error."""
        return self._outcome if self.done and isinstance(self._outcome, Scattered) else None

    def finish(self, outcome: Scattered | BaseException) -> None:
        """Set the result, durable by now, or the error."""
        self._outcome = outcome
        self.done = True

    def result(self) -> Scattered:
        """The result; raises the error if it met one."""
        outcome, self._outcome = self._outcome, None  # an error's traceback leads to this frame: do not keep a cycle
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome


def _nbytes(tensor: Tensor) -> int:
    return tensor.array.nbytes + (tensor.nbytes if isinstance(tensor, PackedStrings) else 0)
