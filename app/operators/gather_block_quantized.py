"""Block-quantized gather: its plan, and the rules on its shapes and parameters.

Data [rows, ..., n] consists of bytes. Each byte is one 8-bit value or two 4-bit values, low half first, so the last
axis has n * 8 / bits values. Each block of `block_size` values along that axis shares a scale and a zero point. Scales
are [rows, ..., ceil(values / block_size)]; zero points have the same shape, packed like data. The output is
indices.shape + data.shape[1:-1] + [values], of the scales' type: (value - zero point) * scale, computed in float32 and
rounded once. The default zero point is the midpoint, 2^(bits - 1).

Source: ONNX Runtime, com.microsoft.GatherBlockQuantized version 1. Its kernel for bytes requires that gather_axis is 0
and that quantize_axis is the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

from app.errors import GatherError, Place, invalid_field
from app.operators.dialects import Dialect
from app.operators.gather_plan import OneBatchPlan
from app.operators.shape_rules import check_wanted_shape, shorten
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor

_LEAST_BLOCK: Final = 16
"""Minimum block_size of the operator."""
PORTION_ITEMS: Final = 1 << 15
"""Number of output items that a kernel computes at a time, as float32."""
_FLOAT32_COPIES: Final = 4
_SHORT_COPIES: Final = 32
"""Number of items that can be copied while one item is dequantized. On an EPYC, dequantizing takes 1.3 ns without
rounding to 16 bits and 16 ns with it.
"""


@dataclass(frozen=True, slots=True)
class BlockQuantizedPlan(OneBatchPlan):
    """data is [rows, groups, bytes of `width` values], indices are [tuples], the output is [tuples, groups, width].

    `dtype` is the output's type, with `item_size` bytes per item. With `wrap`, an index in [-rows, -1] counts from the
    end.
    """

    rows: int
    groups: int
    width: int
    tuples: int
    bits: int
    block_size: int
    dtype: str
    item_size: int
    wrap: bool = True
    depth: ClassVar[int] = 1

    @property
    def blocks(self) -> int:
        """Number of scales per group."""
        return -(-self.width // self.block_size)

    @property
    def zero_point_bytes(self) -> int:
        """Number of bytes of zero points per group."""
        return -(-self.blocks * self.bits // 8)

    # When a route is chosen, this counts as a gather of rows that are as long as the output's rows.

    @property
    def dims(self) -> tuple[int, ...]:
        """The size of the gather's axis."""
        return (self.rows,)

    @property
    def slice_items(self) -> int:
        """Number of output items per index."""
        return self.groups * self.width

    @property
    def index_items(self) -> int:
        """Number of items in indices."""
        return self.tuples

    @property
    def data_items(self) -> int:
        """Number of bytes in data."""
        return self.rows * self.groups * (self.width * self.bits // 8)

    block_items = data_items

    @property
    def copied_items(self) -> int:
        """The cost of dequantizing, as a number of items that could be copied in that time."""
        return self.output_items * (_FLOAT32_COPIES if self.dtype == "float32" else _SHORT_COPIES)

    @property
    def output_items(self) -> int:
        """Number of items in the output."""
        return self.tuples * self.slice_items

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the output."""
        return self.output_items * self.item_size

    @property
    def scratch_bytes(self) -> int:
        """Number of bytes of working memory for a portion: float32 values and their sources."""
        return 16 * max(self.slice_items, PORTION_ITEMS)


def plan_gather_block_quantized(
    dialect: Dialect, call: Call, data: Tensor, further: Mapping[str, Tensor]
) -> tuple[BlockQuantizedPlan, tuple[int, ...], int]:
    """Check parameters and shapes. Returns the plan, the output shape, and the gather's axis, 0.

    Raises invalid_field if block_size or bits has an unsupported value, and then rank_too_small, axis_out_of_range or
    updates_shape_mismatch, in this order.
    """
    gather_axis, quantize_axis, block_size, bits = call.parameters
    _check_block(call, block_size, bits)
    rank = len(data.shape)
    if rank < 2:
        raise GatherError(
            "rank_too_small",
            f"data has rank {rank}, but needs rank 2 or more: rows along its first axis, and blocks along its last",
            pointer=data.shape_pointer,
            rule=dialect.rules["rank_too_small"],
            hint="Give data a shape of rows and their bytes, such as [4, 64].",
        )
    _check_axis(dialect, call, "gather_axis", gather_axis, rank, 0)
    _check_axis(dialect, call, "quantize_axis", quantize_axis, rank, rank - 1)
    width = data.shape[-1] * 8 // bits
    scales, zero_points = further["scales"], further.get("zero_points")
    plan = BlockQuantizedPlan(
        rows=data.shape[0],
        groups=prod(data.shape[1:-1]),
        width=width,
        tuples=prod(call.indices.shape),
        bits=bits,
        block_size=block_size,
        dtype=scales.dtype.name,
        item_size=scales.dtype.carrier.itemsize,
        wrap=dialect.wrap,
    )
    check_wanted_shape(dialect, "scales", scales, (*data.shape[:-1], plan.blocks))
    if zero_points is not None:
        check_wanted_shape(dialect, "zero_points", zero_points, (*data.shape[:-1], plan.zero_point_bytes))
    return plan, (*call.indices.shape, *data.shape[1:-1], width), 0


def _check_block(call: Call, block_size: int, bits: int) -> None:
    """Raise invalid_field unless bits is 4 or 8, and block_size is a power of two and at least 16."""
    if bits not in (4, 8):
        at = call.pointer("bits")
        raise invalid_field(at, f"bits = {shorten(bits)} must be 4 or 8", f"Write 4 or 8 at {at}.")
    if block_size < _LEAST_BLOCK or block_size & (block_size - 1):
        at = call.pointer("block_size")
        detail = f"block_size = {shorten(block_size)} must be a power of 2, and at least {_LEAST_BLOCK}"
        raise invalid_field(at, detail, f"Write a power of 2 at {at}, such as 128.")


def _check_axis(dialect: Dialect, call: Call, name: str, axis: int, rank: int, wanted: int) -> None:
    """Raise axis_out_of_range unless the axis is the supported gather or quantize axis."""
    if axis not in (wanted, wanted - rank):
        why = "bytes are gathered along the first axis" if wanted == 0 else "blocks lie along the last axis"
        raise GatherError(
            "axis_out_of_range",
            f"{name} = {shorten(axis)} must be {wanted}, since {why} of data, which has rank {rank}",
            places=[Place(call.pointer(name), value=axis, allowed=(wanted, wanted))],
            rule=dialect.rules["axis_out_of_range"],
            hint=f"Write {wanted} at {call.pointer(name)}.",
        )
