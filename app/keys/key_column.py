"""A column of keys: integers in one array, or strings in two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

KeyType: TypeAlias = Literal["int64", "uint64", "string"]
Arrays: TypeAlias = tuple[NDArray[np.uint8], int, NDArray[np.uint8]]
"""The bytes of the offsets, the stride in bytes between the offsets of two rows (0 for integers), and the key bytes."""
KEY_TYPES: Final[tuple[KeyType, ...]] = get_args(KeyType)
_NO_OFFSETS: Final[NDArray[np.int64]] = np.zeros(0, np.int64)
_TAKEN_AT_ONCE: Final = 1 << 16
"""Number of bytes of strings copied in one step, which needs 24 times as much memory."""


class KeyColumn:
    """The keys of rows 0 to n - 1, in memory that the caller owns, such as a mapped file.

    `dtype` is a KeyType. Integer keys are one array `keys`. String keys are UTF-8 in `keys` (uint8); string i consists
    of the bytes from `offsets[i]` to `offsets[i + 1]`. `offsets` is int64[n + 1], and is empty for integers. In a
    string column that can change, `offsets` is int64[n, 2] and holds the start and the end of each string. Single rows
    can then be changed, and there may be unused bytes between strings. `step` is the stride in bytes between the
    offsets of two rows, or 0 for integers.
    """

    __slots__ = ("count", "dtype", "keys", "offsets", "step")

    def __init__(self, dtype: KeyType, keys: NDArray[Any], offsets: NDArray[np.int64], count: int) -> None:
        self.dtype = dtype
        self.keys = keys
        self.offsets = offsets
        self.count = count
        self.step = 8 * offsets.ndim if dtype == "string" else 0

    @classmethod
    def integers(cls, keys: NDArray[Any]) -> KeyColumn:
        """Return a column of int64 or uint64 keys; int32 is converted to int64.

        Raises ValueError for another dtype or more than one dimension.
        """
        if keys.dtype == np.int32:
            keys = keys.astype(np.int64)
        if keys.ndim != 1 or keys.dtype not in (np.int64, np.uint64):
            raise ValueError(f"integer keys are int64[n] or uint64[n], not {keys.dtype}{list(keys.shape)}")
        dtype: KeyType = "int64" if keys.dtype == np.int64 else "uint64"
        return cls(dtype, np.ascontiguousarray(keys), _NO_OFFSETS, len(keys))

    @classmethod
    def strings(cls, offsets: NDArray[np.int64], octets: NDArray[np.uint8]) -> KeyColumn:
        """Return a column of the strings that `offsets` (int64[n + 1] or int64[n, 2]) selects from `octets` (uint8).

        Raises ValueError for other dtypes or shapes. The offsets themselves are not checked here: `first_bad_offset`
        does that in a separate pass.
        """
        fits = len(offsets) > 0 if offsets.ndim == 1 else offsets.shape[1:] == (2,)
        if offsets.dtype != np.int64 or not fits:
            raise ValueError(f"offsets of keys are int64[n + 1] or [n, 2], not {offsets.dtype}{list(offsets.shape)}")
        if octets.ndim != 1 or octets.dtype != np.uint8:
            raise ValueError(f"bytes of keys are uint8[n], not {octets.dtype}{list(octets.shape)}")
        count = len(offsets) - (offsets.ndim == 1)
        return cls("string", np.ascontiguousarray(octets), np.ascontiguousarray(offsets), count)

    @classmethod
    def of_strings(cls, keys: Iterable[str | bytes]) -> KeyColumn:
        """Return a column that copies these strings."""
        texts = [key.encode() if isinstance(key, str) else key for key in keys]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return cls.strings(offsets, np.frombuffer(b"".join(texts), np.uint8))

    def __len__(self) -> int:
        return self.count

    @property
    def key_bytes(self) -> NDArray[np.uint8]:
        """The bytes of `keys`."""
        return self.keys.view(np.uint8)

    @property
    def arrays(self) -> Arrays:
        """The arguments for the functions in `app.keys.probe` that change an index."""
        return self.offsets.view(np.uint8).reshape(-1), self.step, self.key_bytes

    def rows(self, start: int, stop: int) -> KeyColumn:
        """Return a column of rows `start` to `stop` that uses the same memory."""
        if self.dtype == "string":
            return KeyColumn.strings(self.offsets[start : stop + (self.offsets.ndim == 1)], self.keys)
        return KeyColumn.integers(self.keys[start:stop])

    def take(self, rows: NDArray[np.int64]) -> KeyColumn:
        """Return a column that copies the keys of `rows`."""
        if self.dtype != "string":
            return KeyColumn.integers(self.keys[rows])
        starts, stops = (side[rows] for side in self.bounds())
        sizes = stops - starts
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        octets = np.empty(int(offsets[-1]), np.uint8)
        done = 0
        while done < len(rows):
            end = max(done + 1, int(offsets.searchsorted(offsets[done] + _TAKEN_AT_ONCE, "right")) - 1)
            into = octets[offsets[done] : offsets[end]]
            if end == done + 1:
                into[:] = self.keys[starts[done] : stops[done]]
            else:
                moved = np.repeat(starts[done:end] - offsets[done:end], sizes[done:end])
                into[:] = self.keys[np.arange(offsets[done], offsets[end]) + moved]
            done = end
        return KeyColumn.strings(offsets, octets)

    def packed(self) -> KeyColumn:
        """Return a column of the same keys in which the strings are contiguous, starting at the first byte.

        Copies strings only if they are not contiguous; always copies integers.
        """
        if self.dtype != "string" or not self.count:
            return self.take(np.arange(self.count))
        starts, stops = self.bounds()
        if not np.array_equal(starts[1:], stops[:-1]):
            return self.take(np.arange(self.count))
        offsets = np.append(starts, stops[-1]) - starts[0]
        return KeyColumn.strings(offsets, self.keys[int(starts[0]) : int(stops[-1])])

    def tolist(self) -> list[int] | list[bytes]:
        """Return the keys as Python integers or bytes."""
        if self.dtype != "string":
            return list(self.keys.tolist())
        starts, stops = self.bounds()
        octets = self.keys.tobytes()
        return [octets[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and end offsets of the strings, as views."""
        if self.offsets.ndim == 1:
            return self.offsets[:-1], self.offsets[1:]
        return self.offsets[:, 0], self.offsets[:, 1]

    def first_bad_offset(self) -> int:
        """Return the flat index in `offsets` of the first bad offset, or -1.

        An offset is bad if it is outside the key bytes, or if it is the end of a string and is less than the string's
        start.
        """
        flat = self.offsets.reshape(-1)
        bad = (flat < 0) | (flat > len(self.keys))
        step = self.offsets.ndim
        bad[1::step] |= flat[1::step] < flat[:-1:step]
        return int(bad.argmax()) if bad.any() else -1
