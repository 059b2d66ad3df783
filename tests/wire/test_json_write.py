"""Answers as JSON: what is written reads back as the same bits, and looks as the contract says."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.formats.json.write_answer import write_answer
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, Encoding
from app.tensors.tensor import Tensor
from tests.strings import items as items_of
from tests.strings import packed
from tests.wire.json_requests import INDICES, call

pytestmark = pytest.mark.usefixtures("every_codec")


def written(dtype: str, array: Any, shape: tuple[int, ...] | None = None, encoding: Encoding = "values") -> bytes:
    if dtype == "string":
        output: Tensor = packed(list(array), shape)
    else:
        items: NDArray[Any] = np.asarray(array, DTYPES[dtype].numpy)
        output = Tensor(DTYPES[dtype], (items.size,) if shape is None else shape, items)
    answer = write_answer(Answer({"output": output}, "onnx-13", "cpu"), encoding)
    return b"".join(answer)


def values(dtype: str, array: Any, shape: tuple[int, ...] | None = None) -> str:
    text = written(dtype, array, shape).decode()
    begin, end = text.index('"values":') + 9, text.index('},"dialect"')
    json.loads(text)
    return text[begin:end]


def read_back(dtype: str, array: NDArray[Any], shape: tuple[int, ...], encoding: Encoding) -> NDArray[Any]:
    """The items of an answer that has been sent in again as data."""
    text = written(dtype, array, shape, encoding)
    output = text[text.index(b"{", 1) : text.index(b',"dialect"')]
    data = call(b'{"data":' + output + b',"indices":' + INDICES.encode() + b"}").data
    assert isinstance(data, Tensor)
    assert (data.dtype.name, data.shape) == (dtype, shape)
    return items_of(data)


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    if one.dtype.kind in "fcV" and one.dtype.itemsize > 2:
        parts = f"f{one.dtype.itemsize // (2 if one.dtype.kind == 'c' else 1)}"
        one, other = one.view(parts), other.view(parts)
        nan = np.isnan(one)
        return bool((nan == np.isnan(other)).all()) and one[~nan].tobytes() == other[~nan].tobytes()
    if one.dtype.kind == "f" or one.dtype == ml_dtypes.bfloat16:
        nan = np.isnan(one.astype(np.float32))
        same_nan = bool((nan == np.isnan(other.astype(np.float32))).all())
        return same_nan and one[~nan].tobytes() == other[~nan].tobytes()
    return one.tobytes() == other.tobytes()


def test_the_whole_answer() -> None:
    output = Tensor(DTYPES["float32"], (2, 1), np.array([0, 3], np.float32))
    assert b"".join(write_answer(Answer({"output": output}, "onnx-13", "cpu"), "values")) == (
        b'{"output":{"dtype":"float32","shape":[2,1],"values":[0.0,3.0]},"dialect":"onnx-13","device":"cpu"}'
    )
    assert b"".join(write_answer(Answer({"output": output}, "onnx-12", "gpu", '"12ab-3"'), "base64")) == (
        b'{"output":{"dtype":"float32","shape":[2,1],"base64":"AAAAAAAAQEA="},"dialect":"onnx-12","device":"gpu",'
        b'"data_etag":"\\"12ab-3\\""}'
    )
    assert b"".join(write_answer(Answer({"output": output}, "onnx-12", "gpu", '"12ab-3"', 7, 0), "base64")) == (
        b'{"output":{"dtype":"float32","shape":[2,1],"base64":"AAAAAAAAQEA="},"dialect":"onnx-12","device":"gpu",'
        b'"data_etag":"\\"12ab-3\\"","version":7,"replaced":0}'
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("encoding", ["values", "base64"])
def test_every_narrow_float_reads_back(dtype: str, encoding: Encoding) -> None:
    items = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype].numpy)
    assert same_bits(read_back(dtype, items, (1 << 16,), encoding), items)


def test_float32_reads_back_through_binary64(soak_scale: int) -> None:
    rng = np.random.default_rng(0)
    exponents = np.arange(255) << 23
    edges = np.concatenate([exponents + step for step in range(-3, 4)]).astype(np.uint32) & 0x7FFFFFFF
    whole = np.arange(-(1 << 16), 1 << 16).astype(np.float32).view(np.uint32)
    cents = (np.arange(1 << 16) / 100).astype(np.float32).view(np.uint32)
    for bits in (edges, whole, cents, *(rng.integers(0, 1 << 32, 1 << 18, np.uint32) for _ in range(soak_scale))):
        items = bits.view(np.float32)
        assert same_bits(read_back("float32", items, (items.size,), "values"), items)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_float32_reads_back() -> None:
    for first in range(0, 1 << 31, 1 << 22):
        items = np.arange(first, first + (1 << 22), dtype=np.uint32).view(np.float32)
        assert same_bits(read_back("float32", items, (items.size,), "values"), items)


def test_float32_is_as_short_as_it_can_be(soak_scale: int) -> None:
    rng = np.random.default_rng(1)
    many = 20_000 * soak_scale
    bits = rng.integers(0, 0x7F800000, many, np.uint32)
    plain = rng.random(many, np.float32)
    items = np.concatenate([bits.view(np.float32), plain, np.float32(2) ** np.arange(-149, 128)]).astype(np.float32)
    for text, item in zip(values("float32", items)[1:-1].split(","), items, strict=True):
        shortest = np.format_float_scientific(item, unique=True, trim="-")
        if np.float32(float(shortest)) == item:  # else it is read as a neighbour, through binary64
            assert digits(text) <= digits(shortest), (text, shortest)


def digits(text: str) -> int:
    return len(text.partition("e")[0].replace(".", "").replace("-", "").strip("0"))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, NDArray[Any], tuple[int, ...]]:
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape))
    if dtype.kind == "string":
        texts = draw(st.lists(st.text(max_size=5), min_size=count, max_size=count))
        items: NDArray[Any] = np.empty(count, object)
        items[:] = texts
    else:
        size = count * dtype.item_size
        raw = draw(st.binary(min_size=size, max_size=size))
        items = np.frombuffer(raw, np.uint8).copy()
        items = (items & 1).view(bool) if dtype.kind == "bool" else items.view(dtype.numpy)
    return dtype.name, items, shape


@given(tensors(), st.sampled_from(["values", "base64"]))
def test_every_type_reads_back_as_the_same_bits(
    tensor: tuple[str, NDArray[Any], tuple[int, ...]], encoding: Encoding
) -> None:
    dtype, items, shape = tensor
    assert same_bits(read_back(dtype, items, shape, encoding), items)
