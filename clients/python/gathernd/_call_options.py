"""The options of the clients' methods, as types for the signatures of overloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ._endpoints import OutOfBounds, Reduction
from ._keys import Missing
from ._messages import Progress
from ._selection import NamedTensor


class GatherOptions(TypedDict, total=False):
    """The options of a gather that do not change the type of its result."""

    dialect: str
    device: str
    out_of_bounds: OutOfBounds | None
    fill_value: Any
    output_dtype: Any
    timeout: float | None
    headers: Mapping[str, str] | None


class AxisGatherOptions(GatherOptions, total=False):
    """The options of a gather along an axis that do not change the type of its result."""

    batch_dims: int
    keys: Any
    missing: Missing | None
    missing_row: Any


class BlockQuantizedOptions(TypedDict, total=False):
    """The options of a block-quantized gather that do not change the type of its result."""

    gather_axis: int
    quantize_axis: int
    block_size: int
    bits: int
    out_of_bounds: OutOfBounds | None
    fill_value: Any
    output_dtype: Any
    timeout: float | None
    headers: Mapping[str, str] | None


class ScatterOptions(TypedDict, total=False):
    """The options of a scatter into a copy that do not change the type of its result."""

    reduction: Reduction
    dialect: str
    timeout: float | None
    headers: Mapping[str, str] | None


class TableScatterOptions(TypedDict, total=False):
    """The options of a scatter into a resident tensor that do not change the type of its result."""

    if_match: str | None
    idempotency_key: str | None
    timeout: float | None
    headers: Mapping[str, str] | None


class BackwardOptions(TypedDict, total=False):
    """The options of a gradient that do not change the type of its result."""

    data_shape: Sequence[int] | None
    tensor: str | NamedTensor | None
    lda_coeff: float
    dialect: str
    timeout: float | None
    headers: Mapping[str, str] | None


class GetOptions(TypedDict, total=False):
    """The options of a download that do not change the type of its result."""

    rows: tuple[int, int] | slice | None
    if_match: str | None
    progress: Progress | bool | None
    timeout: float | None
    headers: Mapping[str, str] | None
