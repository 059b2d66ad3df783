"""The resident tensors that cases read, and whose shapes gradients take."""

from __future__ import annotations

import numpy as np

from tests.http.forms import FLOAT8
from tests.parity import lookup_cases
from tests.parity.items import NUMPY, Array

SMALL: dict[str, Array] = {
    "pv_rows": np.arange(8, dtype=np.float32).reshape(4, 2),
    "pv_wide": np.zeros((4, 3), np.float64),
    "pv_ids": np.arange(3, dtype=np.int64),
    "pv_one": np.array(1.0, np.float32),
    "pv_long": np.zeros((1, 2**16), np.float32),
    "pv_none": np.zeros((0, 2), np.float32),
}
QUANTIZED_SCALES = "pv_scales"
QUANTIZED_ZERO_POINTS = "pv_zero_points"
QUANTIZED: dict[str, Array] = {
    QUANTIZED_SCALES: np.array([[0.5, 2], [-1, 0.1], [1e-3, 7]], np.float32),
    QUANTIZED_ZERO_POINTS: np.array([[0x21], [0xF0], [0x87]], np.uint8),
}
"""Scales and zero points of three rows of two blocks."""
EIGHT_BITS: dict[str, Array] = {
    f"pv_{dtype}": np.arange(8, dtype=np.uint8).view(NUMPY[dtype]).reshape(4, 2) for dtype in FLOAT8
}
TABLES = QUANTIZED | SMALL | EIGHT_BITS | lookup_cases.tables()
