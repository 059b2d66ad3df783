"""Named resident tensors, and the translation of index expressions to calls, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ._arrays_of_others import as_indices

if TYPE_CHECKING:
    from ._answers import TensorInfo

_LAST: Final = np.iinfo(np.int64).max
"""The largest row that a request can name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The call that evaluates an index expression, and its second argument: rows (a, b) for `get`, else indices."""

    call: Literal["get", "gather", "gathernd"]
    argument: Any


def select(key: Any, shape: tuple[int, ...] | None) -> Selection | None:
    """Return the call for the index expression `key` on a tensor, or None if `shape` is needed but None.

    A slice, an integer or an array of integers selects along the first axis. A tuple of integers and arrays of integers
    selects along one axis per entry; the entries broadcast. Raises TypeError for anything else, including a mask, and
    IndexError for an integer beyond int64.
    """
    if key is Ellipsis or (isinstance(key, tuple) and not key):
        return Selection("get", None)
    if isinstance(key, slice):
        return _select_slice(key, shape)
    if isinstance(key, tuple):
        columns = np.broadcast_arrays(*(_integers(entry) for entry in key))
        return Selection("gathernd", np.stack(columns, axis=-1))
    return Selection("gather", _integers(key))


def _select_slice(key: slice, shape: tuple[int, ...] | None) -> Selection | None:
    if shape is None:
        start, stop = 0 if key.start is None else key.start, key.stop
        plain = key.step in (None, 1) and stop is not None and 0 <= start <= stop
        return Selection("get", (start, stop)) if plain else None
    if not shape:
        raise TypeError("a tensor without axes has no rows")
    rows = range(*key.indices(shape[0]))
    if rows.step == 1:
        return Selection("get", (rows.start, max(rows.start, rows.stop)))
    return Selection("gather", np.arange(rows.start, rows.stop, rows.step))


def _integers(entry: Any) -> NDArray[Any]:
    array = as_indices(entry, widen=True)
    if array.dtype.kind not in "iu":
        raise TypeError(f"rows are picked by integers, slices and arrays of integers, not by {entry!r}")
    if array.dtype == np.uint64 and (array > _LAST).any():  # would become negative as int64
        raise IndexError(f"no tensor has a row {array.max()}")
    return array.astype(np.int64)


def version_of(info: TensorInfo) -> str:
    """Return a reference to the described version, so that rows are read from the version whose shape is known."""
    return f"{info.name}@{info.version}"


class NamedTensor:
    """A resident tensor by name; gathers accept it as data instead of the name."""

    __iter__ = None  # iteration would send one request per row

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def resident_name(data: Any) -> str | None:
    """Return the name of the resident tensor that `data` refers to, or None for an array."""
    return data.name if isinstance(data, NamedTensor) else data if isinstance(data, str) else None
