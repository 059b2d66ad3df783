"""`gather_block_quantized` of the clients: rows of a quantized table, of arrays or of resident tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gathernd import Result
from tests.parity.block_quantized import dequantized

DATA = np.random.default_rng(5).integers(0, 256, (4, 24), dtype=np.uint8)
SCALES = np.random.default_rng(6).random((4, 3)).astype(np.float32)
ZERO_POINTS = np.random.default_rng(7).integers(0, 256, (4, 2), dtype=np.uint8)


def test_arrays_are_dequantized(service: Any) -> None:
    found = service.gather_block_quantized(DATA, [2, -1], SCALES, ZERO_POINTS, block_size=16)
    assert found.dtype == np.float32
    assert np.array_equal(found, dequantized(DATA, SCALES, ZERO_POINTS, 4, 16)[[2, -1]])
    eight = service.gather_block_quantized(DATA, [0], SCALES[:, :1].astype(np.float16), bits=8, block_size=32)
    assert np.array_equal(eight, dequantized(DATA, SCALES[:, :1].astype(np.float16), None, 8, 32)[[0]])


def test_each_input_may_be_resident(service: Any) -> None:
    tables = {"bq_data": DATA, "bq_scales": SCALES, "bq_zero_points": ZERO_POINTS}
    etags = [service.put(name, table).etag for name, table in tables.items()]
    try:
        found = service.gather_block_quantized(
            "bq_data", [1, 3], "bq_scales", "bq_zero_points", block_size=16, with_info=True
        )
        assert isinstance(found, Result)
        assert np.array_equal(found.array, dequantized(DATA, SCALES, ZERO_POINTS, 4, 16)[[1, 3]])
        assert found.etag == etags[0]
    finally:
        for name in tables:
            service.delete(name)


def test_what_is_out_of_bounds_is_filled_and_outputs_have_the_type_that_is_asked_for(service: Any) -> None:
    found = service.gather_block_quantized(
        DATA, [4, 0], SCALES, block_size=16, out_of_bounds="fill", fill_value=2.5, output_dtype="float16"
    )
    assert (found.dtype, set(found[0].tolist())) == (np.float16, {2.5})
