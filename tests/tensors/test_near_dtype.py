"""What other languages, libraries and formats call the element types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from app.tensors.dtypes import BY_OIP, BY_SAFETENSORS, DTYPES, DType
from app.tensors.near_dtype import hint_for_dtype, near_dtype
from tests.for_each import for_each

USUAL = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int64", "long": "int64", "short": "int16",
    "str": "string", "object": "string", "boolean": "bool", "bf16": "bfloat16", "complex": "complex128",
    "torch.float32": "float32", "np.int64": "int64", "Float32": "float32", "FLOAT": "float32", "fp16": "float16",
    "f32": "float32", "i64": "int64", "u8": "uint8", "i8": "int8", "int_64": "int64", "float33": "float32",
    "f8e4m3": "float8_e4m3fn", "torch.float8_e5m2": "float8_e5m2", "<V2": "bfloat16",
    "flaot64": "float64", " int32 ": "int32", "utf-8": "string",
}  # fmt: skip


@for_each(("given", "near"), USUAL.items())
def test_a_usual_name_means_the_type(given: str, near: str) -> None:
    assert near_dtype(given) == near


@pytest.mark.parametrize("names", [BY_OIP, BY_SAFETENSORS])
def test_the_names_of_the_formats_mean_their_types(names: Mapping[str, DType]) -> None:
    for name, known in names.items():
        assert near_dtype(name) == near_dtype(name.lower()) == known.name


@for_each("name", [row.name for row in DTYPES.values() if row.npy is not None])
def test_what_numpy_writes_for_a_type_means_it(name: str) -> None:
    dtype = np.dtype(DTYPES[name].numpy)
    assert near_dtype(dtype.str) == near_dtype(dtype.newbyteorder(">").str) == name


@pytest.mark.parametrize("given", ["", "x", "<U3", "M8[ns]", "q" * 1000])
def test_what_is_like_no_type_means_none(given: str) -> None:
    assert near_dtype(given) is None


def test_the_hint_names_the_near_type_and_all_types() -> None:
    assert hint_for_dtype("float").startswith("Write 'float32' in place of 'float'; the types are bool, int8,")
    assert hint_for_dtype("xyz").startswith("Use one of the types bool, int8,")
    assert hint_for_dtype("float", {"float32": "FP32"}) == "Write 'FP32' in place of 'float'; the types are FP32."
    assert hint_for_dtype("complex", {"float32": "FP32"}) == "Use one of the types FP32."
