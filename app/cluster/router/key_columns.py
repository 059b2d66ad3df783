"""Convert the keys of requests to columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.keys.key_column import KeyColumn, KeyType
from app.store.files.key_files import wanted_column
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


def column_of(given: Sequence[Tensor], dtype: KeyType) -> KeyColumn:
    """Return all keys as one column of type `dtype`. The keys are copied, and int32 keys are converted."""
    if dtype != "string":
        return KeyColumn.integers(np.concatenate([one.array.astype(dtype, copy=False) for one in given]))
    columns = [wanted_column(one) for one in given if isinstance(one, PackedStrings)]
    compact = [one.take(np.arange(len(one))) for one in columns]
    sizes = np.concatenate([stop - start for start, stop in (one.bounds() for one in compact)])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return KeyColumn.strings(offsets, np.concatenate([one.keys for one in compact]))
