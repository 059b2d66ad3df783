"""What a block-quantized gather answers, value by value, as the text of ONNX Runtime's operator has it."""

from __future__ import annotations

import numpy as np

from tests.parity.items import Array


def dequantized(data: Array, scales: Array, zero_points: Array | None, bits: int, block_size: int) -> Array:
    """The whole table, of the type of `scales`: (value - zero point) * scale in float32, rounded once."""
    width = data.shape[-1] * 8 // bits
    out = np.empty((*data.shape[:-1], width), scales.dtype)
    for group in np.ndindex(data.shape[:-1]):
        for at in range(width):
            block = at // block_size
            zero = 1 << (bits - 1) if zero_points is None else _value(zero_points[group], block, bits)
            difference = np.float32(_value(data[group], at, bits) - zero)
            with np.errstate(over="ignore", invalid="ignore"):
                out[(*group, at)] = (difference * np.float32(scales[(*group, block)])).astype(scales.dtype)
    return out


def _value(packed: Array, at: int, bits: int) -> int:
    if bits == 8:
        return int(packed[at])
    return int(packed[at // 2]) >> (4 * (at % 2)) & 15
