"""The one cache with a bound, for what can be computed again."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dict of at most `most` keys: a further one empties it first.

    Reading is a dict's own `get`, and no order of use is kept: callers repeat a few keys by the thousand, and only one
    that makes up new ones meets the bound. Setting through other methods than `cache[key] = value` goes past it.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)
