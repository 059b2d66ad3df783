"""Reads the header of an upload as a safetensors file, before the items arrive.

A file contains one tensor, or a table with keys: `keys` and `data` or, for string keys, `keys.offsets`, `keys.bytes`
and `data`. A file that adds keys to a table has no `data`. The tensors' bytes come in this order, so that duplicate
keys are detected before any row arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.errors import GatherError, invalid_field
from app.formats.npy import Start
from app.formats.safetensors.header import (
    HEADER_BYTES,
    UNSOUND_HINT,
    Entry,
    check_header_size,
    hint_for_type,
    read_header,
    write_headers,
)
from app.memory.budget import Memory
from app.tensors.dtypes import DTYPES, DType
from app.tensors.keys_spec import KeysSpec

DATA: Final = "data"
KEYS: Final = "keys"
OFFSETS: Final = "keys.offsets"
BYTES: Final = "keys.bytes"
_LAYOUTS: Final = ((KEYS, DATA), (OFFSETS, BYTES, DATA), (OFFSETS, BYTES))


def read_start(head: bytes | bytearray, memory: Memory) -> Start | None:
    """Parse the header of a file. Returns None if `head` ends within the header.

    Raises malformed_request, limit_exceeded, invalid_field, unsupported_dtype and element_count_mismatch.
    """
    if len(head) < 9:
        return None
    if head[8:9] != b"{":
        raise GatherError("malformed_request", "the safetensors header does not start with {", hint=UNSOUND_HINT)
    size = int.from_bytes(head[:8], "little")
    check_header_size(size)
    if len(head) < 8 + size:
        return None
    memory.charge(HEADER_BYTES * size)
    entries = read_header(bytes(head[8 : 8 + size]))
    if len(entries) != 1:
        return _keyed_start(entries, 8 + size)
    (entry,) = entries
    check_entry(entry, "/body")
    assert entry.known is not None
    return Start(entry.known, entry.shape, 8 + size)


def _keyed_start(entries: Sequence[Entry], offset: int) -> Start:
    names = tuple(entry.name for entry in entries)
    if names not in _LAYOUTS:
        meant = next((layout for layout in _LAYOUTS if sorted(layout) == sorted(names)), None)
        if meant is None:
            raise invalid_field(
                "/body",
                f"the body has {len(entries)} tensors; an upload has exactly one, or keys and data",
                "Send one tensor, or 'keys' and 'data', or 'keys.offsets', 'keys.bytes' and 'data'.",
            )
        raise invalid_field(
            "/body",
            f"the bytes of {', '.join(names)} come in this order, but must come as {', '.join(meant)}",
            f"Write the bytes of {', '.join(meant)} in this order; save_file of safetensors sorts tensors by type.",
        )
    for entry in entries:
        check_entry(entry, entry.pointer)
    last = entries[-1]
    keys = keys_spec(entries[:-1] if last.name == DATA else entries)
    assert last.known is not None
    return Start(last.known, last.shape, offset, keys=keys, only_keys=last.name != DATA)


def keys_spec(entries: Sequence[Entry]) -> KeysSpec:
    """Return the spec of keys: `entries` are either one tensor of integers, or the tensors with offsets and with bytes.

    Raises unsupported_dtype, invalid_field and element_count_mismatch.
    """
    first, *texts = entries
    check_column(first, ("int64",) if texts else ("int64", "uint64"))
    if not texts:
        return KeysSpec("int64" if first.known is DTYPES["int64"] else "uint64", first.shape[0])
    check_column(texts[0], ("uint8",))
    if not first.shape[0]:
        raise GatherError(
            "element_count_mismatch",
            f"{first.name} has no items; n keys have n + 1 offsets",
            pointer=first.pointer,
            hint=f"Begin {first.name} with 0.",
        )
    return KeysSpec("string", first.shape[0] - 1, texts[0].shape[0])


def check_column(entry: Entry, dtypes: Sequence[str]) -> None:
    """Check that a tensor has one of `dtypes` and rank 1.

    Raises unsupported_dtype, element_count_mismatch and invalid_field.
    """
    check_entry(entry, entry.pointer)
    assert entry.known is not None
    if entry.known.name not in dtypes:
        raise GatherError(
            "unsupported_dtype",
            f"{entry.name} is of {entry.known.name}, but must be of {' or '.join(dtypes)}",
            pointer=entry.pointer,
            hint=f"Send {entry.name} as {' or '.join(dtypes)}; strings as keys.offsets and keys.bytes.",
        )
    if len(entry.shape) != 1:
        raise invalid_field(
            entry.pointer,
            f"{entry.name} has shape {list(entry.shape)}, but must have one dimension",
            "Send one key for each row.",
        )


def check_entry(entry: Entry, pointer: str) -> None:
    """Raise unsupported_dtype for an unknown type, and element_count_mismatch for a wrong number of bytes."""
    if entry.known is None:
        raise GatherError(
            "unsupported_dtype",
            f"{entry.dtype!a} is not an element type of this service",
            pointer=pointer,
            hint=hint_for_type(entry.dtype),
        )
    if entry.fault:
        raise GatherError("element_count_mismatch", entry.fault, pointer=pointer)


def keys_head(keys: KeysSpec, data: tuple[DType, tuple[int, ...], int] | None = None) -> bytes:
    """Return the bytes that precede the keys and rows of a download: the header with their types, shapes and sizes."""
    if keys.dtype == "string":
        texts = keys.string_bytes
        tensors = {
            OFFSETS: (DTYPES["int64"], (keys.count + 1,), keys.size - texts),
            BYTES: (DTYPES["uint8"], (texts,), texts),
        }
    else:
        tensors = {KEYS: (keys.stored[0], (keys.count,), keys.size)}
    return write_headers(tensors if data is None else tensors | {DATA: data})
