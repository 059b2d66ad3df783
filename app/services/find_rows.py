"""Find the rows of a table by their keys, to convert a request by key to one by position.

A key that is not in the table is replaced by the row that the request specifies for missing keys. If missing keys are
to be filled, the key is replaced by the position after the last row, and the gather fills its slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.dispatch.choose_backend import LARGE_COPY
from app.errors import REPORTED_PLACES, GatherError, Place
from app.keys.key_column import KeyColumn
from app.keys.key_index import find
from app.keys.probe import Search
from app.near_name import shorten
from app.store import Resident, TableKeys
from app.tensors.by_key import ByKey, NamedRow
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates

_INTEGER_BYTES: Final = 18
"""Upper bound on the bytes that `find_rows` uses per integer key: a wider key, its row, and two marks."""
_STRING_BYTES: Final = 72
"""Upper bound on the bytes that `find_rows` uses per string key: its row, two marks, and memory for comparing it with
the padding key.
"""
FEW_KEYS: Final = 1 << 11
"""The event loop itself looks up at most this many keys, because each may be anywhere in memory."""
_INT64: Final = DTYPES["int64"]
_NOT_FOUND: Final[NDArray[np.int64]] = np.empty(0, np.int64)


class KeysToFind(NamedTuple):
    """Keys to look up in the table `name`, whose keys are in `column`. `skipped` marks the padding of bags."""

    by_key: ByKey
    keys: Tensor
    column: TableKeys
    name: str
    skipped: NDArray[np.bool_] | None = None


class FoundRows(NamedTuple):
    """The row of each key, and the number of `missing` keys.

    `lacks` says for each key whether it is missing from the table. If missing keys are filled, their row is the table's
    number of rows. `skipped` marks the keys that are padding of bags; it is None if there are none.
    """

    rows: NDArray[np.int64]
    missing: int
    lacks: NDArray[np.bool_]
    skipped: NDArray[np.bool_] | None = None

    def found(self, shape: tuple[int, ...]) -> Tensor:
        """Return the output that says which of the requested keys were found."""
        return Tensor(DTYPES["bool"], shape, ~self.lacks)


def bytes_to_find(keys: Tensor) -> int:
    """Return an upper bound on the bytes that `find_rows` uses for these keys."""
    return (_STRING_BYTES if isinstance(keys, PackedStrings) else _INTEGER_BYTES) * keys.array.size


def are_few(keys: Iterable[Tensor]) -> bool:
    """Return whether there are few enough keys, and few enough bytes of strings, for the event loop to look up
    itself.
    """
    count = size = 0
    for one in keys:
        count += one.array.size
        size += one.octets.size if isinstance(one, PackedStrings) else 0
    return count <= FEW_KEYS and size < LARGE_COPY


def positions_of(keys: Tensor, rows: NDArray[np.int64] = _NOT_FOUND) -> Tensor:
    """Return the positions of keys, as a tensor with the shape of `keys` and their pointer in the request.

    `rows` holds the positions as a flat array, which is empty until they are found.
    """
    return Tensor(_INT64, keys.shape, rows, keys.pointer, keys.form, keys.shape_pointer, keys.dtype_pointer)


def check_keys(keys: Tensor, resident: Resident, name: str, pointer: str) -> None:
    """Check that keys can be looked up in the table that the request calls `name`, at `pointer`.

    Raises no_keys and unsupported_dtype.
    """
    column = resident.keys
    if column is None:
        raise GatherError("no_keys", f"{name!r} has no key column", pointer=pointer)
    given, wanted = keys.dtype.name, column.dtype
    if given == wanted or (given, wanted) == ("int32", "int64"):
        return
    raise GatherError(
        "unsupported_dtype",
        f"the keys of {name!r} are {wanted}, not {given}",
        pointer=keys.dtype_pointer,
        hint=f"Send keys of type {wanted}.",
    )


def find_rows(wanted: Sequence[KeysToFind]) -> list[FoundRows | GatherError]:
    """Look up keys in their tables, in one compiled call.

    Returns key_not_found or index_out_of_bounds if a key, or the row that replaces it, is missing. Keys marked in
    `skipped` never count as missing; their rows are 0, even if the table has no rows. The result is valid only if no
    writer has since changed the table versions to which the columns belong.
    """
    instead = [_row_of_missing(one) for one in wanted]
    searches = [one.column.search(_search_keys(one.keys, one.column)) for one in wanted]
    counts = find(searches, [-1 if isinstance(row, GatherError) else row for row in instead])
    return [
        row if isinstance(row, GatherError) else _found_rows(one, search, missing)
        for one, row, search, missing in zip(wanted, instead, searches, counts, strict=True)
    ]


def _row_of_missing(wanted: KeysToFind) -> int | GatherError:
    """Return the row to read for missing keys; -1 if there is none."""
    by_key, column = wanted.by_key, wanted.column
    if by_key.missing_row is not None:
        return resolve_named_row(by_key.missing_row, "missing_row", column, column.count, wanted.name)
    return column.count if by_key.missing == "fill" else -1


def _found_rows(wanted: KeysToFind, search: Search, missing: int) -> FoundRows | GatherError:
    rows, lacks, skipped = search.rows, search.lacks, wanted.skipped
    counted = lacks
    if skipped is not None:
        counted = lacks & ~skipped
        missing = int(np.count_nonzero(counted))
        rows[skipped] = 0
    if missing and wanted.by_key.missing == "error":
        return _key_not_found(wanted.keys, counted, missing, wanted.name)
    return FoundRows(rows, missing, lacks, skipped)


def _search_keys(keys: Tensor, column: TableKeys) -> KeyColumn | PackedStrings:
    if isinstance(keys, PackedStrings):
        return keys
    return KeyColumn.integers(keys.array.astype(column.dtype, copy=False))


def resolve_named_row(given: NamedRow, field: str, column: TableKeys | None, rows: int, name: str) -> int | GatherError:
    """Return the row that a request's field selects, or the error if the table, which has `rows` rows, has no such row.

    Raises value_not_representable.
    """
    if given.key is not None:
        assert column is not None, "a request that names a key has keys"
        key = given.key.item(DTYPES[column.dtype])
        search = column.search(_search_keys(key, column))
        if find([search], [-1]) == [0]:
            return int(search.rows[0])
        value = value_of(key, 0)
        return GatherError(
            "key_not_found",
            f"{field} refers to the key {value!r}, which {name!r} does not have",
            places=[Place(given.key.pointer, value=value)],
            hint=f"Send a key that {name!r} has at {given.key.pointer}, or the position of a row at {given.pointer}.",
        )
    position = given.position
    assert position is not None
    if 0 <= position < rows:
        return position
    return GatherError(
        "index_out_of_bounds",
        f"{field} refers to row {position}, but {name!r} has {rows} rows",
        places=[Place(given.pointer, value=position, axis=0, size=rows, allowed=(0, rows - 1) if rows else None)],
        hint=f"Name a row from 0 to {rows - 1} at {given.pointer}." if rows else None,
    )


def _key_not_found(keys: Tensor, lacks: NDArray[np.bool_], missing: int, name: str) -> GatherError:
    """Return the error for missing keys. It lists the first ten of them and the total number."""
    items = np.flatnonzero(lacks)[:REPORTED_PLACES].tolist()
    places = [Place(keys.locate(item), coordinates(item, keys.shape), value_of(keys, item)) for item in items]
    first = places[0]
    at = f"[{','.join(map(str, first.position or ()))}]" if first.position else ""
    more = f", and {missing - 1} more" if missing > 1 else ""
    detail = f"keys{at} = {first.value!r} is not a key of {name!r}{more}"
    return GatherError("key_not_found", detail, places=places, total=missing)


def value_of(keys: Tensor, item: int) -> int | str:
    """Return a key as shown in an error."""
    if isinstance(keys, PackedStrings):
        return shorten(bytes(keys.frame(item)[4:]).decode())
    return int(keys.array[item])
