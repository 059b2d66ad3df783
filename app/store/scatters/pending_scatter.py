"""A scatter on its way to the disk: what it changes, and its result once it has been carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.catalogue.conditions import ALWAYS, Conditions
from app.tensors.operator_signature import Reduction
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


class Scattered(NamedTuple):
    """What a scatter is answered: the ETag of the content after it, and the number of the version that it changed.

    `repeated` says that it was carried out before, for a request with the same Idempotency-Key, and not again.
    """

    etag: str
    version: int
    repeated: bool = False


class ContentReplaced(Exception):
    """The tensor has been replaced since the scatter was validated; it is to be validated again."""


@dataclass(frozen=True, slots=True)
class ScatterChange:
    """A scatter validated against the content of id `content`: update number i goes to row `rows[i]`.

    `updates` have `width` items a row. `key` is the Idempotency-Key, `digest` identifies the request.
    """

    content: str
    rows: NDArray[np.int64]
    updates: Tensor
    width: int
    reduction: Reduction
    key: str | None = None
    digest: str = ""


class PendingScatter:
    """A scatter that waits to be carried out: a future whose result is a `Scattered`, or an error.

    `wake` is called, from any thread, when its turn has come (see `group_commit`); `is_leader` says that its turn has
    come when it is queued.
    """

    __slots__ = ("_outcome", "change", "conditions", "done", "is_leader", "wake")

    def __init__(
        self, change: ScatterChange, conditions: Conditions = ALWAYS, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.change = change
        self.conditions = conditions
        self.wake = wake
        self.done = self.is_leader = False
        self._outcome: Scattered | BaseException | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its row numbers and updates; strings count with their frames."""
        updates = self.change.updates
        frames = updates.nbytes if isinstance(updates, PackedStrings) else 0
        return self.change.rows.nbytes + updates.array.nbytes + frames

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
