"""The safetensors reader and writer, against the safetensors package and against hostile bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load, save

from app.errors import GatherError
from app.formats.safetensors.header import ALIGNMENT, MAX_HEADER
from app.formats.safetensors.read_request import read_layout
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.formats.safetensors.write_answer import write_answer
from app.tensors.dtypes import BY_SAFETENSORS, DTYPES
from app.tensors.gather_call import Answer, Call
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.for_each import for_each
from tests.safetensors_files import FORBIDDEN, SOUND, UNSOUND, with_member
from tests.wire.json_requests import SIGNATURES

# the types for which safetensors has a NumPy helper
THEIRS = sorted(set(BY_SAFETENSORS) - {"BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"})
ARRAYS = st.sampled_from(THEIRS).flatmap(
    lambda name: hnp.arrays(
        BY_SAFETENSORS[name].numpy, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)


def body(header: Any, payload: bytes = b"", *, size: int | None = None, pad: int = 0) -> bytes:
    """A safetensors body with this header, given as text or as what JSON makes of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return (len(text) if size is None else size).to_bytes(8, "little") + text + payload


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pair(data: dict[str, Any], indices: dict[str, Any] | None = None, payload: bytes = b"") -> bytes:
    """A body of `data` and, right behind it, one index tuple (8 bytes) unless `indices` describes another."""
    end = data["data_offsets"][1]
    return body({"data": data, "indices": indices or entry("I64", [1, 1], end, end + 8)}, payload)


def read(raw: bytes | bytearray, query: bytes = b"", operator: Any = "gathernd") -> Call:
    call: Call = read_safetensors(raw, query, SIGNATURES[operator], Limits())[0]
    return call


def refused(raw: bytes, query: bytes = b"", operator: Any = "gathernd") -> tuple[str, str | None]:
    """The code and the first pointer of the error that reading gives."""
    with pytest.raises(GatherError) as caught:
        read(raw, query, operator)
    return caught.value.code, caught.value.places[0].pointer if caught.value.places else None


def theirs_refuse(raw: bytes) -> bool:
    try:
        deserialize(raw)  # type: ignore[no-untyped-call]
    except SafetensorError:
        return True
    return False


GOOD = pair(entry("F32", [2, 2], 0, 16), payload=bytes(24))


def bits(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@given(data=ARRAYS, indices=ARRAYS)
def test_what_the_package_saves_is_read_bit_by_bit(data: NDArray[Any], indices: NDArray[Any]) -> None:
    call = read(save({"data": data, "indices": indices}, metadata={"format": "np"}))
    for tensor, array in ((call.data, data), (call.indices, indices)):
        assert isinstance(tensor, Tensor)
        assert tensor.shape == array.shape
        assert tensor.array.dtype == array.dtype
        assert tensor.array.ndim == 1
        assert tensor.array.flags.aligned
        assert bits(tensor.array) == bits(array)


@given(array=ARRAYS)
def test_what_is_written_the_package_loads_bit_by_bit(array: NDArray[Any]) -> None:
    dtype = DTYPES[array.dtype.name]
    pieces = write_answer(Answer({"output": Tensor(dtype, array.shape, array.reshape(-1))}, "onnx-13", "cpu"))
    raw = b"".join(pieces)
    (name, found), *rest = load(raw).items()
    assert (name, rest) == ("output", [])
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    assert bits(found) == bits(array)
    assert (len(raw) - array.nbytes) % ALIGNMENT == 0


@given(
    edit=st.sampled_from(("cut", "extend", "flip")),
    place=st.integers(0, len(GOOD) - 1),
    octet=st.integers(1, 255),
)
def test_a_damaged_body_is_never_read_where_the_package_refuses_it(edit: str, place: int, octet: int) -> None:
    raw = bytearray(GOOD)
    if edit == "cut":
        del raw[place:]
    elif edit == "extend":
        raw += bytes([octet]) * (1 + place % 9)
    else:
        raw[place] ^= octet
    if theirs_refuse(bytes(raw)):
        with pytest.raises(GatherError):
            read(raw)


def is_refused(raw: bytes) -> bool:
    """Whether a file is refused for its layout, or for the type or the size of a tensor."""
    try:
        entries, _ = read_layout(raw)
    except GatherError as error:
        return error.code == "malformed_request"
    return any(entry.known is None or entry.fault for entry in entries)


@for_each("name", SOUND)
def test_a_file_that_the_package_reads_is_read(name: str) -> None:
    assert [found for found, _ in deserialize(SOUND[name])] == ["x"]  # type: ignore[no-untyped-call]
    entries, start = read_layout(SOUND[name])
    assert not is_refused(SOUND[name])
    assert [(found.name, found.dtype, found.shape) for found in entries] == [("x", "F32", (2,))]
    assert len(SOUND[name]) - start == 8


@for_each("name", UNSOUND | FORBIDDEN)
def test_a_file_that_the_package_or_the_format_refuses_is_refused(name: str) -> None:
    if name in UNSOUND:
        with pytest.raises(SafetensorError):
            deserialize(UNSOUND[name])  # type: ignore[no-untyped-call]
    assert is_refused((UNSOUND | FORBIDDEN)[name])


@for_each("pad", range(8))
@for_each("first", ["data", "indices"])
@for_each(("dtype", "count"), [("I8", 3 << 10), ("I8", (3 << 10) + 3), ("BF16", 1 << 10), ("F32", 3), ("F64", 1 << 8)])
@for_each("tuples", [1, 1 << 8])
def test_tensors_are_read_wherever_they_begin(pad: int, first: str, dtype: str, count: int, tuples: int) -> None:
    kind = BY_SAFETENSORS[dtype]
    arrays = {
        "data": np.frombuffer(np.random.default_rng(1).bytes(count * kind.item_size), kind.numpy),
        "indices": np.arange(tuples),
    }
    header, payload = {}, b""
    for name in sorted(arrays, key=lambda name: name != first):
        end = len(payload) + arrays[name].nbytes
        header[name] = entry(dtype if name == "data" else "I64", [len(arrays[name])], len(payload), end)
        payload += bits(arrays[name])
    call = read(bytearray(body(header, payload, pad=pad)))
    assert isinstance(call.data, Tensor)
    for tensor, array in ((call.data, arrays["data"]), (call.indices, arrays["indices"])):
        assert tensor.array.flags.aligned
        assert bits(tensor.array) == bits(array)
    frozen = bytes(body(header, payload, pad=pad))
    assert bits(read(frozen).indices.array) == bits(arrays["indices"])


def test_the_same_header_is_not_trusted_for_another_body() -> None:
    read(GOOD)
    assert refused(GOOD[:-1])[0] == "malformed_request"
    assert refused(GOOD + b"\0")[0] == "malformed_request"


@pytest.mark.parametrize("octet", [2, 255])
def test_a_bool_is_zero_or_one(octet: int) -> None:
    raw = pair(entry("BOOL", [2, 2], 0, 4), payload=bytes([0, 1, octet, 1]) + bytes(8))
    with pytest.raises(GatherError) as caught:
        read(raw)
    (place,) = caught.value.places
    assert (caught.value.code, place.pointer) == ("value_not_representable", "/data")
    assert (place.position, place.value) == ((1, 0), octet)


@pytest.mark.parametrize(
    "shape",
    [[5], [4, 0], [], [2**62, 4], [2**63], [2**64 + 1], [2**32, 2**32], [2**40] * 30, [3] * 20_000, [10**4000]],
    ids=repr,
)
def test_a_shape_that_the_bytes_do_not_fill_is_a_mismatch(shape: list[int]) -> None:
    assert refused(pair(entry("U8", shape, 0, 4), payload=bytes(12))) == ("element_count_mismatch", "/data")


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty body": lambda: b"",
    "header length cut short": lambda: b"\x10\0\0\0\0\0\0",
    "no header": lambda: bytes(8),
    "header length of 2^63": lambda: (2**63).to_bytes(8, "little") + b"{}",
    "header length of 2^64-1": lambda: b"\xff" * 8 + b"{}",
    "header length one beyond the body": lambda: body(b"{}", size=3),
    "header length one short": lambda: body(b"{}", size=1),
    "header is not JSON": lambda: body(b"{data}"),
    "header is a list": lambda: body(b"[]"),
    "header is not UTF-8": lambda: body(b'{"\xff": 1}'),
    "header nests too deep": lambda: body(b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "header with a number of 10,000 digits": lambda: body(b'{"__metadata__": ' + b"9" * 10_000 + b"}"),
    "metadata given twice": lambda: body(b'{"__metadata__":{},"__metadata__":{}}'),
    "tensor is a number": lambda: body({"data": 1}),
    "offsets missing": lambda: body({"data": {"dtype": "U8", "shape": [0]}}),
    "shape missing": lambda: body({"data": {"dtype": "U8", "data_offsets": [0, 0]}}),
    "member unknown that nests too deep": lambda: with_member(f'"a":{"[" * 126}{"]" * 126}'),
    "member unknown without end": lambda: with_member('"a":"' + "[" * 100_000),
    "dtype is a number": lambda: body({"data": {**entry("U8", [0], 0, 0), "dtype": 1}}),
    "two dimensions negative": lambda: pair({**entry("U8", [0], 0, 4), "shape": [-2, -2]}, payload=bytes(12)),
    "one offset": lambda: body({"data": {**entry("U8", [0], 0, 0), "data_offsets": [0]}}),
    "offset is true": lambda: body({"data": {**entry("U8", [1], 0, 1), "data_offsets": [0, True]}}, bytes(1)),
    "offset negative": lambda: pair(entry("U8", [4], -4, 0), payload=bytes(8)),
    "offsets reversed": lambda: body({"data": entry("U8", [4], 4, 0)}, bytes(4)),
    "offset beyond the body": lambda: pair(entry("U8", [100], 0, 100), payload=bytes(12)),
    "offset of 2^64 wraps to 0": lambda: body({"data": entry("U8", [0], 2**64, 2**64)}),
    "tensors are the same bytes": lambda: pair(entry("I64", [1, 1], 0, 8), entry("I64", [1, 1], 0, 8), bytes(8)),
    "trailing byte": lambda: GOOD + b"\0",
    "bytes without tensors": lambda: body({}, b"\0"),
}


@for_each("attack", HOSTILE)
def test_hostile_body_is_malformed(attack: str) -> None:
    with pytest.raises(GatherError) as caught:
        read(HOSTILE[attack]())
    assert (caught.value.code, caught.value.places) == ("malformed_request", ())
    assert "save_file" in str(caught.value.hint)
    assert "--data-binary" in str(caught.value.hint)


def test_a_header_over_the_limit_is_refused_before_it_is_read() -> None:
    raw = body(b"{" + b" " * MAX_HEADER + b"}")
    with pytest.raises(GatherError) as caught:
        read_layout(raw)
    assert caught.value.code == "limit_exceeded"
    assert caught.value.facts == {"limit": "safetensors_header_bytes", "maximum": MAX_HEADER}
    assert read_layout(body(b"{" + b" " * (MAX_HEADER - 2) + b"}"))[0] == ()
