from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.formats import npy
from app.tensors.dtypes import DTYPES
from tests.for_each import for_each

NUMBERS = [name for name in DTYPES if name not in ("string", "bfloat16") and not name.startswith("float8")]


GOOD = {"descr": "<f4", "fortran_order": False, "shape": (2,)}


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version)
    return buffer.getvalue()


def with_header(text: str, version: int = 1, length: int | None = None) -> bytes:
    raw = text.encode()
    size = len(raw) if length is None else length
    return npy.MAGIC + bytes((version, 0)) + size.to_bytes(2 if version == 1 else 4, "little") + raw


@for_each("version", [(1, 0), (2, 0), (3, 0)])
@for_each("shape", [(), (0,), (3,), (2, 3, 4), (5, 0)])
@for_each("name", NUMBERS)
def test_what_numpy_writes_is_read(name: str, shape: tuple[int, ...], version: tuple[int, int]) -> None:
    array = np.ones(shape, DTYPES[name].numpy)
    body = saved(array, version)
    start = npy.read_start(body)
    assert start is not None
    assert (start.dtype.name, start.shape, start.swap) == (name, shape, False)
    assert body[start.offset :] == array.tobytes()


TYPES = (
    "?", "<?", "b1", "<b1", "=b1", "|b1", "b", "B", "h", "l", "L", "q", "e", "f", "d", "F", "D", "<f", ">d", "=f4",
    "|f4", "f4", "f04", "=i8", ">u1", "bool", "bool_", "float32", "float", "int", "half", "single", "double",
    "longlong", "uint16", "complex", "csingle",
)  # fmt: skip


@for_each("descr", TYPES)
def test_a_type_is_what_numpy_reads(descr: str) -> None:
    found = np.load(io.BytesIO(with_header(repr(GOOD | {"descr": descr})) + bytes(64)))
    start = npy.read_start(with_header(repr(GOOD | {"descr": descr})))
    assert start is not None
    assert (start.dtype.numpy, start.swap) == (found.dtype.newbyteorder("<"), found.dtype.str[0] == ">")


@for_each("version", [1, 2])
@for_each(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10L, 4L), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10L,), }\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0L, 4), }",
        "{'shape': (10 L, 0x4L), 'fortran_order': True, 'descr': '>f4'}",
        "{'descr': \"<f4\", 'fortran_order': False, 'shape': (10L,4L)}",
    ],
)
@pytest.mark.filterwarnings("ignore:Reading .*Python 2")
def test_long_integers_of_python_2_are_read(version: int, text: str) -> None:
    body = with_header(text, version)
    found = np.load(io.BytesIO(body + bytes(160)))
    start = npy.read_start(body)
    assert start is not None
    assert (start.shape, start.swap) == (found.shape, found.dtype.str[0] == ">")
    assert start.fortran == (not found.flags.c_contiguous)


@for_each("name", NUMBERS)
@for_each("shape", [(), (0,), (3,), (2, 3, 4)])
def test_what_is_written_numpy_reads(name: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, DTYPES[name].numpy)
    header = npy.write_header(DTYPES[name], shape)
    assert len(header) % 64 == 0
    found = np.load(io.BytesIO(header + array.tobytes()), allow_pickle=False)
    assert found.dtype == array.dtype
    assert found.shape == shape


def test_a_long_header_is_of_version_two() -> None:
    header = npy.write_header(DTYPES["int8"], (10**18,) * 4000)
    assert header[6] == 2
    assert len(header) % 64 == 0
    assert npy.read_start(npy.write_header(DTYPES["int8"], (10**18,) * 3000)) is not None


def test_a_pickled_object_array_is_refused_and_not_unpickled() -> None:
    body = io.BytesIO()
    np.save(body, np.array([print], object), allow_pickle=True)
    with pytest.raises(GatherError, match="unsupported_dtype"):
        npy.read_start(body.getvalue())


@pytest.mark.parametrize("length", [2**32 - 1, npy.MAX_HEADER + 1])
def test_a_header_of_four_gigabytes_is_refused_at_once(length: int) -> None:
    with pytest.raises(GatherError, match="limit_exceeded"):
        npy.read_start(with_header("{", 2, length))


@for_each(
    "body",
    [
        b"\x93NUMPX" + bytes(20),
        b"PK\3\4" + bytes(20),
        npy.MAGIC + bytes((4, 0)) + bytes(20),
        npy.MAGIC + bytes((0, 0)) + bytes(20),
        npy.MAGIC + bytes((1, 1)) + with_header(repr(GOOD))[8:],
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}", 3),
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2l,)}"),
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (L,)}"),
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2LL,)}"),
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2_L,)}"),
        with_header("{'descr': '<f4', 'fortran_order': False, 'sh" + "9L" * 300),
        with_header(""),
        with_header("{"),
        with_header("[]"),
        with_header("{'descr': '<f4'}"),
        with_header(repr(GOOD | {"more": 1})),
        with_header(repr(GOOD | {"shape": [2]})),
        with_header(repr(GOOD | {"shape": (-1,)})),
        with_header(repr(GOOD | {"shape": (True,)})),
        with_header(repr(GOOD | {"shape": (2.0,)})),
        with_header(repr(GOOD | {"fortran_order": 0})),
        with_header("__import__('os').system('true')"),
        with_header("(" * 5000),
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}"),
        with_header("\0" * 100),
        with_header("\xff" * 100, 3).replace("ÿ".encode(), b"\xff\xff"),
    ],
)
def test_an_unsound_header_is_malformed(body: bytes) -> None:
    with pytest.raises(GatherError, match="malformed_request"):
        npy.read_start(body)


@for_each(
    "descr",
    [
        None, 4, "", "<", "<f3", "<i9999999999", "<f4junk", "|b2", "=i16", ">u3", "<float32", "float32 ", " f4", "f4,",
        "2f4", "(2,)f4", "i4,f4", "f4\\n", "?1", "a3", "Float32", "int0", "bfloat16", "O8", "c", "M8", "^f4",
        "x" * 9999,
    ],
)  # fmt: skip
def test_no_type_at_all_is_no_type(descr: Any) -> None:
    with pytest.raises(GatherError, match="unsupported_dtype"):
        npy.read_start(with_header(repr(GOOD | {"descr": descr})))


@for_each(
    ("descr", "words"),
    [
        ("|V1", "view('uint8')"),
        ("float8_e4m3fn", "view('uint8')"),
        ("int4", "view('uint8')"),
        ("<V2", "bfloat16"),
        ("<U3", "dtype=string"),
        ("|S3", "dtype=string"),
        ("<M8[s]", "view('int64')"),
        ("<f16", "complex128"),
        ("Float32", "float32"),
        ("|O", "array.astype"),
    ],
)
def test_a_type_that_is_not_read_has_a_way_out(descr: str, words: str) -> None:
    with pytest.raises(GatherError) as caught:
        npy.read_start(with_header(repr(GOOD | {"descr": descr})))
    assert caught.value.code == "unsupported_dtype"
    assert words in str(caught.value.hint)


@for_each("version", [(1, 0), (2, 0)])
def test_a_file_that_curl_d_damaged_is_told_how_to_send_it(version: tuple[int, int]) -> None:
    body = saved(np.arange(5), version)
    for damaged in (body.translate(None, b"\0\r\n"), body.translate(None, b"\0")):
        with pytest.raises(GatherError) as caught:
            npy.read_start(damaged)
        assert caught.value.code == "malformed_request"
        assert "--data-binary" in str(caught.value.hint)
        assert "numpy.save" in str(caught.value.hint)
