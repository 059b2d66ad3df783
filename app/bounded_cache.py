"""A bounded cache for values that can be computed again."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dict of at most `most` keys. When it is full, it is emptied before another key is added.

    Reading uses a dict's own `get`, and no order of use is tracked: callers repeat a few keys thousands of times, and
    only a caller that invents new keys reaches the bound. The bound applies only to `cache[key] = value`, not to a
    dict's other ways to set keys.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most and key not in self:
            self.clear()
        super().__setitem__(key, value)
