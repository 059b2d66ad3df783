"""Upserts and removals by key: the rules on the types and shapes of keys and updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from app.errors import GatherError, Place
from app.operators.dialects import SCATTERND
from app.operators.shape_rules import check_updates_type, check_wanted_shape
from app.tensors.dtypes import DType
from app.tensors.scatter_call import KeyedCall


def row_items(dtype: DType, shape: Sequence[int], call: KeyedCall) -> int:
    """Check `call` against a table of this type and shape. Returns the number of items per row.

    Keys must have one dimension, and updates one row per key. The type of the keys is not checked. Raises
    unsupported_dtype, rank_mismatch and updates_shape_mismatch.
    """
    keys, updates, dialect = call.keys, call.updates, SCATTERND["onnx-18"]
    if updates is not None:
        check_updates_type(dialect, dtype, updates, call, "the table")
    rank = len(keys.shape)
    if rank != 1:
        raise GatherError(
            "rank_mismatch",
            f"keys has rank {rank} and needs rank 1",
            places=[Place(keys.shape_pointer, value=rank, allowed=(1, 1))],
            hint=f"Give the keys one dimension at {keys.shape_pointer}.",
        )
    if updates is not None:
        check_wanted_shape(dialect, "updates", updates, (*keys.shape, *shape[1:]))
    return prod(shape[1:])
