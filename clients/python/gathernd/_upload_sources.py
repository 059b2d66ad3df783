"""Sources of an upload besides arrays: npy, safetensors, Parquet and Arrow files, and iterators of rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ._array_bytes import ElementType, EncodedTensor, StreamedTensor
from ._arrays_of_others import encode_value
from ._key_arrays import KEY_TENSORS, key_tensors
from ._safetensors import MAX_HEADER_BYTES, read_entries, tensor_of_file

DATA: Final = "data"
_NPY_MAGIC: Final = b"\x93NUMPY"
TABLE_MAGIC: Final = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
"""First bytes of Parquet files, Arrow IPC files (Feather) and Arrow IPC streams."""


def encode_upload(source: Any, tensor: str | None) -> EncodedTensor:
    """Encode the tensor to upload. A file is memory-mapped; the rows of an iterator are written to a temporary file.

    `tensor` is the name of a tensor in a safetensors file. Raises ValueError if a file is neither npy nor safetensors
    or if rows differ in shape or type, TypeError if the service does not have a type, and OSError.
    """
    if isinstance(source, str | os.PathLike):
        return _encode_file(Path(source), tensor)
    if tensor is not None:
        raise ValueError("tensor= names a tensor of a safetensors file, and no file is uploaded")
    return _encode_rows(source) if isinstance(source, Iterator) else encode_value(source)


def upload_tensors(
    source: Any, tensor: str | None, keys: Any, columns: Sequence[str] | str | None = None
) -> dict[str, EncodedTensor | StreamedTensor]:
    """Return the tensors of an upload in order: the key tensors, if any, then `data`.

    `keys` is an array or the path of an npy file. Without `keys`, a safetensors file may contain key tensors in
    addition to `data`. For a Parquet or Arrow file (a path or an open file), `keys` may be the name of a column, and
    `columns` are the columns that form the rows. May raise any error of `encode_upload`, `key_tensors` and
    `table_tensors`. Also raises TypeError if the rows' type cannot be uploaded together with keys.
    """
    is_file = isinstance(source, str | os.PathLike)
    if (is_file and is_table_file(Path(source))) or _is_open_file(source):
        if tensor is not None:
            raise ValueError(f"{source} has columns, which columns= names, and no tensors")
        return _read_columns(Path(source) if is_file else source, keys, columns)
    if columns is not None:
        raise ValueError("columns= names columns of a Parquet or Arrow file, and no such file is uploaded")
    if is_file and keys is None and tensor is None:
        for names in KEY_TENSORS:
            if _tensor_names(Path(source)) == {*names, DATA}:
                return {name: _encode_file(Path(source), name) for name in (*names, DATA)}
    rows = encode_upload(source, tensor)
    if keys is None:
        return {DATA: rows}
    if rows.element_type.safetensors is None:
        raise TypeError(f"rows of {rows.element_type.name} are uploaded without keys; put_keys gives them keys then")
    return {**key_tensors(keys), DATA: rows}


def is_table_file(path: Path) -> bool:
    """Return True if the first bytes are those of a Parquet or Arrow file. Raises OSError."""
    with path.open("rb") as file:
        return file.read(8).startswith(TABLE_MAGIC)


def _is_open_file(source: Any) -> bool:
    """Return True for an open Parquet or Arrow file. Raises ValueError for any other open file."""
    if not hasattr(source, "read") or not hasattr(source, "seek"):
        return False
    head = source.read(8)
    source.seek(0)
    if not isinstance(head, bytes) or not head.startswith(TABLE_MAGIC):
        raise ValueError("an open file is one of Parquet or Arrow, in binary mode; give the path of any other")
    return True


def _read_columns(
    source: Any, keys: Any, columns: Sequence[str] | str | None
) -> dict[str, EncodedTensor | StreamedTensor]:
    try:
        from ._table_files import table_tensors  # noqa: PLC0415  (pyarrow, of an extra)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{source} needs pyarrow: pip install './clients/python[parquet]' in a checkout"
        ) from error
    own = keys if isinstance(keys, str) else None
    found, rows = table_tensors(source, own, columns)
    return {**(found if keys is None or own is not None else key_tensors(keys)), DATA: rows}


def _tensor_names(path: Path) -> set[str]:
    """Return the tensor names in a safetensors file, or an empty set for any other file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(path.stat().st_size - 8, MAX_HEADER_BYTES):
            return set()
        try:
            return set(read_entries(file.read(length)))
        except ValueError:
            return set()


def _encode_file(path: Path, tensor: str | None) -> EncodedTensor:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start.startswith(_NPY_MAGIC):
            if tensor is not None:
                raise ValueError(f"{path} is an npy file, which has one tensor and no names")
            try:
                return encode_value(np.load(path, mmap_mode="r", allow_pickle=False))
            except ValueError as error:
                raise ValueError(f"{path} cannot be uploaded: {error}") from None
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"{path} is neither an npy nor a safetensors file")
        header = file.read(length)
    element_type, shape, begin, end = tensor_of_file(header, size - 8 - length, tensor, str(path))
    count = end - begin
    raw = np.memmap(path, np.uint8, "r", 8 + length + begin, (count,)) if count else np.empty(0, np.uint8)
    return EncodedTensor(element_type, shape, raw.data)


def _encode_rows(rows: Iterator[Any]) -> EncodedTensor:
    """Write the rows to a temporary file and return their tensor.

    The file is needed because an upload states its shape before its bytes, and may have to be sent again.
    """
    kind: tuple[ElementType, tuple[int, ...]] | None = None
    count = 0
    with tempfile.TemporaryFile() as file:
        for count, row in enumerate(rows, 1):
            encoded = encode_value(row)
            if kind is None:
                kind = encoded.element_type, encoded.shape
            elif kind != (encoded.element_type, encoded.shape):
                raise ValueError(
                    f"row {count - 1} is {encoded.element_type.name} of shape {list(encoded.shape)}, those before it "
                    f"are {kind[0].name} of shape {list(kind[1])}"
                )
            file.write(encoded.raw)
        if kind is None:
            raise ValueError("an iterator without rows has no shape: upload an empty array")
        file.flush()
        raw = np.memmap(file, np.uint8, "r") if file.tell() else np.empty(0, np.uint8)
    return EncodedTensor(kind[0], (count, *kind[1]), raw.data)
