"""The cases of the block-quantized gather: each type, parameter and mode that it has, and each rule broken."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.conformance.cases import Case, at, case, refused
from tests.conformance.tables import QUANTIZED_SCALES, QUANTIZED_ZERO_POINTS
from tests.parity.items import NUMPY, Array

PATH = "/gather_block_quantized"
DIALECT = "onnxruntime-1"
RULE = (DIALECT, None)


def table(dtype: str, *shape: int, bits: int = 4, block_size: int = 16, zero_points: bool = True) -> dict[str, Any]:
    """Quantized values of a shape, as the arrays and parameters of a request that has the last axis quantized."""
    rng = np.random.default_rng(zlib.crc32(repr((dtype, shape, bits, block_size)).encode()))
    blocks = -(-(shape[-1] * 8 // bits) // block_size)
    found: dict[str, Any] = {
        "data": rng.integers(0, 256, shape, dtype=np.uint8),
        "scales": (rng.normal(size=(*shape[:-1], blocks)) * 10.0 ** rng.integers(-3, 3)).astype(NUMPY[dtype]),
    }
    if zero_points:
        found["zero_points"] = rng.integers(0, 256, (*shape[:-1], -(-blocks * bits // 8)), dtype=np.uint8)
    given = {"bits": bits, "block_size": block_size, "quantize_axis": len(shape) - 1}
    usual = {"bits": 4, "block_size": 128, "quantize_axis": 1}
    return found | {name: value for name, value in given.items() if value != usual[name]}


def rows(*values: int) -> Array:
    return np.array(values, np.int64)


def _answered() -> Iterator[Case]:
    def asked(name: str, body: dict[str, Any], indices: Array, **more: Any) -> Case:
        return case(f"{PATH} {name}", PATH, body | {"indices": indices} | more)

    for dtype in ("float32", "float16", "bfloat16"):
        for bits in (4, 8):
            for zero_points in (True, False):
                body = table(dtype, 3, 20, bits=bits, zero_points=zero_points)
                name = f"{dtype}, {bits} bits{', zero points' if zero_points else ''}"
                yield asked(name, body, np.array([[2, 0], [-1, 1]]), dialect=DIALECT)
    yield asked("int32", table("float32", 3, 16), np.array([2, -3], np.int32))
    yield asked("one index", table("float32", 3, 16), np.array(1))
    yield asked("no index", table("float32", 3, 16), np.zeros((0, 2), np.int64))
    yield asked("no values", table("float32", 3, 0), rows(1, 2))
    yield asked("no groups", table("float32", 3, 0, 8), rows(1, 2))
    yield asked("rank 4", table("float32", 3, 2, 2, 9, block_size=16), rows(2, 0), gather_axis=-4)
    yield asked("rank 3, 8 bits", table("bfloat16", 2, 3, 40, bits=8, block_size=32), rows(1, -2, 1))
    yield asked("blocks of 128", table("float32", 2, 100, block_size=128), rows(1))
    yield asked("the last axis from the back", table("float32", 2, 8) | {"quantize_axis": -1}, rows(1))
    for mode in ("error", "clip", "wrap", "fill"):
        indices = rows(0, -3) if mode == "error" else rows(3, -4, 0, 2**40)
        yield asked(f"out_of_bounds {mode}", table("float32", 3, 8), indices, out_of_bounds=mode)
    yield asked("filled", table("float16", 3, 8), rows(3, 0), out_of_bounds="fill", fill_value=0.1)
    yield asked("as float16", table("float32", 3, 8), rows(2, 0), output_dtype="float16")
    yield asked("as float64", table("bfloat16", 3, 8), rows(2, 0), output_dtype="float64")
    scales, zeros = {"tensor": QUANTIZED_SCALES}, {"tensor": QUANTIZED_ZERO_POINTS}
    plain = table("float32", 3, 16)
    yield asked("resident scales", plain | {"scales": scales}, rows(2, 0))
    yield asked("resident zero points", plain | {"zero_points": zeros}, rows(2, 0))
    yield asked("both resident", plain | {"scales": scales, "zero_points": zeros}, rows(1, -1))


def _refused() -> Iterator[Case]:
    good = table("float32", 3, 16) | {"indices": rows(2, 0)}

    def broken(code: str, places: list[dict[str, Any]], *, rule: Any = RULE, **more: Any) -> Case:
        body = {name: value for name, value in (good | more).items() if value is not None}
        return refused(code, body, places, PATH, rule)

    for bits in (0, 2, 5, 16, -4, 2**70):
        yield broken("invalid_field", at("/bits"), rule=None, bits=bits)
    for size in (0, 8, 15, 24, -16, 2**70 + 1):
        yield broken("invalid_field", at("/block_size"), rule=None, block_size=size)
    yield broken("invalid_field", at("/bits"), rule=None, bits=4.5)
    yield broken("invalid_field", at("/axis"), rule=None, axis=0)
    yield broken("invalid_field", at("/batch_dims"), rule=None, batch_dims=0)
    yield broken("invalid_field", at("/scales"), rule=None, scales=None)
    yield broken("invalid_field", at("/dialect"), rule=None, dialect="onnx-13")
    yield broken("invalid_field", at("/fill_value"), rule=None, fill_value=1)
    for axis in (1, -1, 2, -3, 2**63, -(2**63)):
        place = at("/gather_axis", value=axis, allowed=[0, 0])
        yield broken("axis_out_of_range", place, gather_axis=axis)
    for axis in (0, -2, 2, 2**63, -(2**63)):
        place = at("/quantize_axis", value=axis, allowed=[1, 1])
        yield broken("axis_out_of_range", place, quantize_axis=axis)
    flat: dict[str, Any] = {"data": np.zeros(16, np.uint8), "scales": np.zeros(2, np.float32), "zero_points": None}
    yield broken("rank_too_small", at("/data/shape"), **flat)
    yield broken("unsupported_dtype", at("/data/dtype"), data=np.zeros((3, 16), np.int8))
    yield broken("unsupported_dtype", at("/indices/dtype"), indices=np.array([0], np.uint8))
    yield broken("unsupported_dtype", at("/scales/dtype"), scales=np.ones((3, 2), np.float64))
    yield broken("unsupported_dtype", at("/zero_points/dtype"), zero_points=np.zeros((3, 1), np.int16))
    yield broken("unsupported_dtype", at("/scales/tensor"), scales={"tensor": QUANTIZED_ZERO_POINTS})
    for shape in ((3, 1), (3, 3), (2, 2), (3,), (3, 2, 1), (0, 2)):
        yield broken("updates_shape_mismatch", at("/scales/shape"), scales=np.ones(shape, np.float32))
    for shape in ((3, 2), (3,), (1, 1)):
        yield broken("updates_shape_mismatch", at("/zero_points/shape"), zero_points=np.zeros(shape, np.uint8))
    yield broken("updates_shape_mismatch", at("/scales/tensor"), scales={"tensor": QUANTIZED_SCALES}, block_size=32)
    yield broken("tensor_not_found", at("/scales/tensor"), rule=None, scales={"tensor": "pv_nothing"})
    yield broken("tensor_not_found", at("/zero_points/tensor"), rule=None, zero_points={"tensor": "pv_nothing"})
    yield broken("device_unavailable", at("/device"), rule=None, device="gpu")
    long: dict[str, Any] = {"data": np.zeros((1, 2**15), np.uint8), "scales": np.ones((1, 2**12), np.float32)}
    facts = {"limit": "output_bytes", "maximum": 2**30}
    many = long | {"indices": np.zeros(2**12 + 1, np.int64)}
    yield refused("output_too_large", many | {"block_size": 16}, at("/indices/shape"), PATH, facts=facts)
    outside = at("/indices/values/1", position=[1], value=3, axis=0, size=3, allowed=[-3, 2])
    yield broken("index_out_of_bounds", outside, indices=rows(2, 3))
    none: dict[str, Any] = {
        "data": np.zeros((0, 16), np.uint8),
        "scales": np.zeros((0, 2), np.float32),
        "zero_points": None,
    }
    outside = at("/indices/values/0", position=[0], value=0, axis=0, size=0, allowed=None)
    yield broken("index_out_of_bounds", outside, indices=rows(0), **none)


BLOCK_QUANTIZED_ANSWERED: list[Case] = [*_answered()]
BLOCK_QUANTIZED_REFUSED: list[Case] = [*_refused()]
