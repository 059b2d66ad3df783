"""Tables with keys: uploaded, and looked up by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn
from app.keys.key_index import find
from app.store import LocalStore, Metadata
from app.store.files.write_uploaded_tensor import UploadSpec
from app.tensors.keys_spec import KeysSpec
from tests.store.helpers import BY_NUMPY, packed, uploaded
from tests.strings import packed as packed_strings

Keys = NDArray[Any] | Sequence[str]


def column_of(keys: Keys) -> KeyColumn:
    return KeyColumn.integers(keys) if isinstance(keys, np.ndarray) else KeyColumn.of_strings(keys)


def raw_keys(keys: Keys) -> bytes:
    """The bytes of keys as an upload has them: integers, or offsets and then UTF-8."""
    offsets, _, octets = column_of(keys).arrays
    return offsets.tobytes() + octets.tobytes()


def keys_spec(keys: Keys) -> KeysSpec:
    column = column_of(keys)
    return KeysSpec(column.dtype, column.count, len(column.keys) if column.dtype == "string" else 0)


def put_keyed(
    store: LocalStore,
    name: str,
    keys: Keys,
    rows: NDArray[Any],
    step: int = 1 << 16,
    keep: int | None = None,
    capacity: int | None = None,
) -> Metadata:
    """Upload a table with keys."""
    dtype = BY_NUMPY[rows.dtype]
    spec = UploadSpec(name, dtype, rows.shape, keep=keep, keys=keys_spec(keys), capacity=capacity)
    raw = packed(rows.ravel().tolist()) if dtype.kind == "string" else rows.tobytes()
    return store.put(uploaded(store, spec, raw_keys(keys) + raw, step))[0]


def rows_of(store: LocalStore, name: str, wanted: Keys) -> list[int]:
    """The rows that the keys of `name` give, -1 for a key that is missing."""
    resident = store.get(name)
    assert resident is not None
    assert resident.keys is not None
    given = KeyColumn.integers(wanted) if isinstance(wanted, np.ndarray) else packed_strings(list(wanted))
    search = resident.keys.search(given)
    find([search], [-1])
    found: list[int] = search.rows.tolist()
    return found
