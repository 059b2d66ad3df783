"""The resident tensors that lookups of the table read, and whose shapes gradients take."""

from __future__ import annotations

import numpy as np

from tests.parity import backward_cases, lookup_cases
from tests.parity.items import Array

SMALL: dict[str, Array] = {
    "pv_rows": np.arange(8, dtype=np.float32).reshape(4, 2),
    "pv_wide": np.zeros((4, 3), np.float64),
    "pv_ids": np.arange(3, dtype=np.int64),
    "pv_one": np.array(1.0, np.float32),
    "pv_none": np.zeros((0, 2), np.float32),
}
TABLES = SMALL | lookup_cases.tables() | backward_cases.tables()
