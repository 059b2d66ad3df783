"""Uploads of Parquet and Arrow files: some columns become the rows, another column becomes the keys.

A file is read in record batches with pyarrow (extra `parquet`): once to count the rows and check the keys, because an
upload's header contains the counts, then again while keys and rows are sent. Only a few batches are in memory at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc
from pyarrow.parquet import ParquetFile

from ._array_bytes import ELEMENT_TYPES, Buffer, ElementType, StreamedBytes, StreamedTensor
from ._key_arrays import KEY_TENSORS

PARQUET: Final = b"PAR1"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
PIECE_BYTES: Final = 4 << 20
"""Approximate number of bytes of rows that are read at a time."""
ROWS_AT_ONCE: Final = 1 << 16
"""Maximum number of rows whose keys or values are read at a time."""
_KEYS_ARE: Final = "keys are integers or strings"
_ROWS_ARE: Final = "rows are made of columns of numbers or bools, all of one type, or of one column of lists of them"


def table_tensors(
    source: Any, key: str | None, columns: Sequence[str] | str | None
) -> tuple[dict[str, StreamedTensor], StreamedTensor]:
    """Return the key tensors of an upload (empty without `key`) and the tensor of its rows.

    `source` is the path of a file, or an open, seekable file that stays open until the upload ends. `key` is the name
    of the key column. `columns` are the columns that form the rows; the default is all other columns. Columns of
    numbers give rows of shape [n, columns]; one column of lists of equal length gives rows of shape [n, length].

    Raises ValueError if the file cannot be read, a column is missing or a key is null, and TypeError if a column has
    another type. Iterating over the rows raises ValueError if there is a null or if lists differ in length.
    """
    table = _open(source)
    path, names = table.path, table.schema.names
    if columns is None:
        columns = [name for name in names if name != key]
    columns = [columns] if isinstance(columns, str) else list(columns)
    for name in columns if key is None else [key, *columns]:
        if names.count(name) != 1:
            what = "no column" if name not in names else f"{names.count(name)} columns"
            listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise ValueError(f"{path} has {what} {name!r}; its columns are {listed}")
    if not columns:
        raise ValueError(f"{path} has no column for the rows")
    rows = _Rows(table, columns)
    if key is None:
        return {}, rows.tensor(sum(batch.num_rows for batch in table.batches(columns[:1], ROWS_AT_ONCE)))
    keys, count = _key_tensors(table, key)
    return keys, rows.tensor(count)


class _Table(Protocol):
    """A file of columns. Methods raise ValueError if the file cannot be read."""

    path: str
    """The name of the file in error messages."""
    schema: Any

    def batches(self, columns: Sequence[str], count: int) -> Iterator[Any]:
        """Yield record batches of at most `count` rows with these columns, in file order."""


def _open(source: Any) -> _Table:
    is_path = isinstance(source, Path)
    with source.open("rb") if is_path else nullcontext(source) as file:
        head = file.read(4)
    path = str(source) if is_path else "the file"
    try:
        return _Parquet(source, path) if head == PARQUET else _Arrow(source, path, head == ARROW_STREAM)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


class _Parquet:
    """A Parquet file. A path is read page by page; an open file, which may be remote, is read by whole columns of a row
    group.
    """

    def __init__(self, source: Any, path: str) -> None:
        self.path = path
        self._source = source
        with self._opened() as file:
            self.schema = file.schema_arrow

    def _opened(self) -> Any:
        is_path = isinstance(self._source, Path)
        return ParquetFile(self._source, buffer_size=1 << 20 if is_path else 0, pre_buffer=not is_path)

    def batches(self, columns: Sequence[str], count: int) -> Iterator[Any]:
        """See `_Table`."""
        try:
            with self._opened() as file:
                for group in range(file.num_row_groups):
                    yield from file.iter_batches(count, row_groups=[group], columns=sorted(set(columns)))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from None


class _Arrow:
    """An Arrow IPC file or stream; a path is memory-mapped."""

    def __init__(self, source: Any, path: str, is_stream: bool) -> None:
        self.path = path
        self._source = source
        self._open: Callable[..., Any] = ipc.open_stream if is_stream else ipc.open_file
        with self._open(self._bytes()) as reader:
            self.schema = reader.schema

    def _bytes(self) -> Any:
        if isinstance(self._source, Path):
            return pa.memory_map(str(self._source))
        self._source.seek(0)
        return self._source

    def batches(self, columns: Sequence[str], count: int) -> Iterator[Any]:
        """See `_Table`."""
        fields = sorted({self.schema.names.index(name) for name in columns})
        options = ipc.IpcReadOptions(included_fields=fields)
        try:
            with self._open(self._bytes(), options=options) as reader:
                numbers = getattr(reader, "num_record_batches", None)
                for batch in reader if numbers is None else map(reader.get_batch, range(numbers)):
                    for first in range(0, batch.num_rows, count):
                        yield batch.slice(first, count)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from None


class _Rows:
    """The rows of an upload, built from columns of a file. Raises TypeError if the columns have unsupported or
    different types.
    """

    def __init__(self, table: _Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = columns
        kinds = {name: table.schema.field(name).type for name in columns}
        self._list = kinds[columns[0]] if len(columns) == 1 and _is_list(kinds[columns[0]]) else None
        items = kinds if self._list is None else {columns[0]: self._list.value_type}
        types = {name: _element_type(table.path, name, kind) for name, kind in items.items()}
        self._type = types[columns[0]]
        for name, found in types.items():
            if found != self._type:
                raise TypeError(
                    f"{table.path}: {columns[0]!r} is {self._type.name} and {name!r} is {found.name}; {_ROWS_ARE}. "
                    "Cast them in the file, or choose others."
                )
        self._width = len(columns) if self._list is None else self._length_of_lists(self._list)

    def _length_of_lists(self, kind: Any) -> int:
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        (name,) = self._columns
        for batch in self._table.batches(self._columns, 1):
            _check_nulls(self._table.path, name, batch.column(0), 0)
            return len(batch.column(0)[0])
        raise ValueError(f"{self._table.path}: {name!r} has no list, and so rows have no length")

    def tensor(self, count: int) -> StreamedTensor:
        """Return the tensor of `count` rows."""
        size = count * self._width * self._type.itemsize
        return StreamedTensor(self._type, (count, self._width), StreamedBytes(size, self._pieces))

    def _pieces(self) -> Iterator[Buffer]:
        at_once = max(1, min(PIECE_BYTES // max(1, self._width * self._type.itemsize), ROWS_AT_ONCE))
        start = 0
        for batch in self._table.batches(self._columns, at_once):
            columns = [batch.column(name) for name in self._columns]
            for name, column in zip(self._columns, columns, strict=True):
                _check_nulls(self._table.path, name, column, start)
            if self._list is not None:
                items = self._items_of_lists(columns[0], start)
            else:
                items = np.empty((batch.num_rows, self._width), self._type.numpy)
                for number, column in enumerate(columns):
                    items[:, number] = column.to_numpy(zero_copy_only=False)
            yield _bytes(items)
            start += batch.num_rows

    def _items_of_lists(self, lists: Any, start: int) -> NDArray[Any]:
        (name,) = self._columns
        if not pa.types.is_fixed_size_list(lists.type):
            lengths = lists.value_lengths().to_numpy()
            for row in np.flatnonzero(lengths != self._width)[:1].tolist():
                raise ValueError(
                    f"{self._table.path}: the list of {name!r} in row {start + row} has {lengths[row]} items, and that "
                    f"in row 0 has {self._width}"
                )
        items = lists.flatten()
        if items.null_count:
            raise _null(self._table.path, name, start + int(np.flatnonzero(items.is_null())[0]) // self._width)
        found: NDArray[Any] = items.to_numpy(zero_copy_only=False)
        return found


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _element_type(path: str, name: str, kind: Any) -> ElementType:
    """Return the service's element type for a column. Raises TypeError if there is none."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return ELEMENT_TYPES[np.dtype(kind.to_pandas_dtype()).name]
    raise TypeError(f"{path}: {name!r} is {kind}; {_ROWS_ARE}")


def _key_tensors(table: _Table, name: str) -> tuple[dict[str, StreamedTensor], int]:
    """Return the key tensors and the number of keys. Reads the key column once."""
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not is_text and not pa.types.is_integer(kind):
        raise TypeError(f"{table.path}: {name!r} is {kind}; {_KEYS_ARE}")
    count = size = 0
    for keys in _keys(table, name):
        count += len(keys)
        size += int(_offsets(keys)[-1]) - int(_offsets(keys)[0]) if is_text else 0

    def tensor(element_type: str, items: int, make: Callable[[], Iterator[Buffer]]) -> StreamedTensor:
        found = ELEMENT_TYPES[element_type]
        return StreamedTensor(found, (items,), StreamedBytes(items * found.itemsize, make))

    (integers,), (offsets, texts) = KEY_TENSORS
    if is_text:
        tensors = {
            offsets: tensor("int64", count + 1, lambda: _all_offsets(table, name)),
            texts: tensor("uint8", size, lambda: map(_utf8, _keys(table, name))),
        }
    else:
        wide = "uint64" if kind == pa.uint64() else "int64"
        tensors = {integers: tensor(wide, count, lambda: _all_integers(table, name, wide))}
    return tensors, count


def _keys(table: _Table, name: str) -> Iterator[Any]:
    """Yield non-empty arrays of keys. Raises ValueError for a null."""
    start = 0
    for batch in table.batches([name], ROWS_AT_ONCE):
        keys = batch.column(0)
        _check_nulls(table.path, name, keys, start)
        start += len(keys)
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if pa.types.is_string(keys.type) or pa.types.is_string_view(keys.type):
            keys = keys.cast(pa.large_string())
        if len(keys):
            yield keys


def _all_integers(table: _Table, name: str, dtype: str) -> Iterator[Buffer]:
    for keys in _keys(table, name):
        yield _bytes(keys.to_numpy().astype(dtype, copy=False))


def _all_offsets(table: _Table, name: str) -> Iterator[Buffer]:
    end = np.zeros(1, np.int64)
    yield _bytes(end)
    for keys in _keys(table, name):
        offsets = _offsets(keys)
        ends = offsets[1:] + (end - offsets[0])
        yield _bytes(ends)
        end = ends[-1:]


def _offsets(texts: Any) -> NDArray[np.int64]:
    """Return the byte offset of each string in an array's data, and the end of the last string."""
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _utf8(texts: Any) -> Buffer:
    offsets = _offsets(texts)
    held = texts.buffers()[2]
    return memoryview(b"" if held is None else held).cast("B")[offsets[0] : offsets[-1]]


def _bytes(items: NDArray[Any]) -> Buffer:
    return np.ascontiguousarray(items).reshape(-1).view(np.uint8).data


def _check_nulls(path: str, name: str, column: Any, start: int) -> None:
    """Raise ValueError if the column has a null; `start` is the row of the column's first value."""
    if column.null_count:
        raise _null(path, name, start + int(np.flatnonzero(column.is_null())[0]))


def _null(path: str, name: str, row: int) -> ValueError:
    return ValueError(f"{path}: {name!r} is null in row {row}; fill it, or leave the row out, before the upload")


def _unreadable(path: str, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read: {error}")
