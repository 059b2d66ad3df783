"""Gathers through the client against a running server."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import gathernd as package
from gathernd import errors
from tests.for_each import for_each
from tests.http.server import ROOT, Server

TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "string",
)  # fmt: skip


def sample(dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Random items of a type: of numbers, any bits there are."""
    rng = np.random.default_rng(7)
    count = int(np.prod(shape))
    if dtype == "string":
        return np.array([f"ß{number}\0" for number in range(count)], object).reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return np.frombuffer(rng.bytes(count * kind.itemsize), kind).reshape(shape)


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Equal in type, shape and every bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


@for_each("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_floats_of_8_bits_come_back_bit_by_bit_in_the_dialect_of_openvino(service: Any, dtype: str) -> None:
    data = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).reshape(64, 4)
    found = service.gathernd(data, np.array([[5], [63]]), dialect="openvino-8")
    assert found.dtype == data.dtype
    assert found.tobytes() == data[[5, 63]].tobytes()
    service.put(f"octets_{dtype}", data)
    assert service.get(f"octets_{dtype}").tobytes() == data.tobytes()
    assert service.gathernd(f"octets_{dtype}", [[1]], dialect="openvino-8").tobytes() == data[[1]].tobytes()
    service.delete(f"octets_{dtype}")


@for_each("dtype", TYPES)
def test_every_type_comes_back_bit_by_bit(each_service: Any, dtype: str) -> None:
    service = each_service
    data = sample(dtype, (3, 4, 5))
    indices = np.array([[0, 1], [2, -1], [-3, 3]])
    assert same(service.gathernd(data, indices), data[tuple(indices.T)])
    assert same(service.gather(data, indices, 1), data[:, indices])
    assert same(service.gather(data, np.array(-1), -1), data[..., -1])
    picked = np.array([[[4], [0], [-1], [2]], [[0], [1], [2], [3]]])
    assert same(service.gather_elements(data, picked, -1), np.take_along_axis(data[:2], picked % 5, 2))
    rows = np.array([[[2], [0], [-1], [1]]], np.int32)
    assert same(service.gather_elements(data, rows), np.take_along_axis(data[:, :, :1], rows % 3, 0))


class Wrapped:
    """Something that only knows how to become an array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.arange(6).reshape(2, 3)


class Exported:
    """Something that only speaks DLPack."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_what_is_like_an_array_is_taken(service: Any) -> None:
    assert service.gathernd(Wrapped(), [[1, 2]]).tolist() == [5]
    assert service.gathernd(Exported(np.arange(6.0)), Exported(np.array([[4]]))).tolist() == [4.0]
    assert service.gathernd([[1, 2], [3, 4]], [(1, 0)]).tolist() == [3]
    assert service.gathernd([["a", "b"], ["c", "ü"]], [[1]]).tolist() == [["c", "ü"]]
    assert service.gathernd([True, False], [[1]]).tolist() == [False]


def test_memory_in_another_order_is_sent_in_row_major_order(service: Any) -> None:
    data = np.arange(24, dtype=">f4").reshape(4, 6)
    indices = np.array([[3, 5], [1, 2]], ">i8")
    for turned in (data, np.asfortranarray(data), data[::-1][::-1], np.repeat(data, 2, 1)[:, ::2]):
        assert service.gathernd(turned, np.asfortranarray(indices)).tolist() == [23.0, 8.0]
    locked = data.copy()
    locked.flags.writeable = False
    found = service.gathernd(locked, indices)
    found[0] = 1  # what comes back is the caller's own
    assert data[3, 5] == 23


def test_narrow_indices_are_widened_for_onnx_and_wide_ones_are_not_cut(service: Any) -> None:
    data = np.arange(5.0)
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):
        assert service.gathernd(data, np.array([[4]], dtype)).tolist() == [4.0]
        assert service.gathernd(data, np.array([[4]], dtype), dialect="openvino-8").tolist() == [4.0]
    assert service.gathernd(data, np.array([[4]], "uint64"), dialect="openvino-8").tolist() == [4.0]
    for indices in (np.array([[4]], "uint64"), [[4.0]], [[True]]):
        with pytest.raises(errors.UnsupportedDtype):
            service.gathernd(data, indices)
    with pytest.raises(errors.IndexDepthOutOfRange):
        service.gathernd(data, [])


@for_each(
    "data",
    [
        np.array(["2020-01-01"], "M8[D]"), np.array([b"a"]), np.array([(1,)], "i4,"), np.array([1, None]),
        np.array([1], np.longdouble),
    ],
)  # fmt: skip
def test_a_type_that_the_service_lacks_is_a_type_error(service: Any, data: NDArray[Any]) -> None:
    with pytest.raises(TypeError):
        service.gathernd(data, [[0]])


@for_each(
    ("arguments", "error", "pointer"),
    [
        ((np.eye(2), [[0, 0], [5, 1]]), errors.IndexOutOfBounds, "/indices"),
        ((np.eye(2), [[0]], 10**40), errors.BatchDimsOutOfRange, "/query/batch_dims"),
        (("nobody", [[0]]), errors.TensorNotFound, "/query/tensor"),
        ((np.array(["a"]), [[1]]), errors.IndexOutOfBounds, "/indices/base64"),
        ((np.array([1j]), [[0]], True), errors.InvalidField, "/batch_dims"),
    ],
)
def test_each_refusal_is_its_own_exception(
    service: Any, arguments: tuple[Any, ...], error: type[errors.ServiceError], pointer: str
) -> None:
    with pytest.raises(error) as caught:
        service.gathernd(*arguments)
    assert type(caught.value) is error
    assert caught.value.errors[0].pointer == pointer
    assert caught.value.status in (404, 422)
    assert caught.value.request_id
    if error is errors.IndexOutOfBounds and pointer == "/indices":
        assert isinstance(caught.value, IndexError)
        assert (caught.value.total, caught.value.limit) == (1, None)
        assert caught.value.errors[0].position == (1, 0)
        assert caught.value.errors[0].allowed == (-2, 1)
        assert caught.value.rule is not None
        assert caught.value.rule.dialect == "onnx-13"


@for_each(
    ("dtype", "fill", "stored"),
    [
        ("float32", 0.1, 0.1),
        ("float32", float("nan"), float("nan")),
        ("bfloat16", np.float32(2.5), 2.5),
        ("int64", 2**62 + 1, 2**62 + 1),
        ("bool", True, True),
        ("complex128", 1 - 2j, 1 - 2j),
        ("string", "none", "none"),
        ("int8", None, 0),
    ],
)
def test_slices_of_indices_that_are_out_of_bounds_are_filled(service: Any, dtype: str, fill: Any, stored: Any) -> None:
    data = sample(dtype, (3, 2))
    wanted = data[[2, 0]].copy()
    wanted[1] = stored
    found = service.gathernd(data, [[2], [7]], out_of_bounds="fill", fill_value=fill, with_info=True)
    assert same(found.array, wanted)
    assert found.replaced == 1
    assert service.gather(data, [0], with_info=True).replaced is None


@for_each("fill", [np.array(-0.0), np.float32(-0.0), np.array(-0.0, ml_dtypes.bfloat16), -0.0])
def test_a_fill_value_may_be_an_array_of_rank_0(service: Any, fill: Any) -> None:
    filled = service.gather(np.ones(2, np.float32), [7], out_of_bounds="fill", fill_value=fill)
    assert str(filled.tolist()) == "[-0.0]"
    with pytest.raises(TypeError):
        service.gather(np.ones(2, np.float32), [7], out_of_bounds="fill", fill_value=np.array([1.0]))


@for_each("asked", ["bfloat16", np.float16, ml_dtypes.bfloat16, np.dtype("float64")])
def test_an_output_of_floats_is_asked_for_in_another_type(service: Any, asked: Any) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if isinstance(asked, str) else asked)
    data = np.array([[0.1, -3.5], [1e-7, 70000]], np.float32)
    with np.errstate(over="ignore"):
        wanted = data.astype(dtype)
    assert same(service.gather(data, [1, 0], output_dtype=asked), wanted[[1, 0]])
    assert same(service.gathernd(data, [[0, 1]], output_dtype=asked), wanted[[0], [1]])
    assert same(service.gather_elements(data, [[0, 1]], output_dtype=asked), wanted[[[0, 1]], [[0, 1]]])
    service.put("floats", data)
    assert same(service.lookup([("floats", [1, 1, 0])], output_dtype=asked), wanted[[1, 1, 0]])
    service.delete("floats")
    with pytest.raises(errors.UnsupportedDtype, match="output_dtype is for data of a float type"):
        service.gather(np.arange(3), [0], output_dtype=asked)


def test_every_parameter_reaches_the_service(service: Any) -> None:
    data = np.arange(12).reshape(2, 3, 2)
    indices = np.array([[1, -1], [0, 7]], np.int16)
    given = {"batch_dims": 1, "dialect": "openvino-8"}
    found = service.gather(data, indices, 2, **given, with_info=True)
    assert found.array.ravel().tolist() == [1, 1, 3, 3, 5, 5, 6, 0, 8, 0, 10, 0]
    assert found.replaced == 1
    assert service.gather(data, indices, 2, **given, fill_value=-5)[1, 0].tolist() == [6, -5]
    with pytest.raises(errors.IndexOutOfBounds):
        service.gather(data, indices, 2, **given, out_of_bounds="error")
    with pytest.raises(errors.DeviceUnavailable):
        service.gather(np.eye(2), [0], device="gpu")


def test_a_large_array_goes_and_comes(each_service: Any) -> None:
    data = np.random.default_rng(9).random((3000, 500))
    indices = np.random.default_rng(10).integers(-3000, 3000, (4000, 1))
    assert same(each_service.gathernd(data, indices), data[indices[:, 0]])


def test_a_service_that_is_not_there_is_a_connect_error(kind: Any) -> None:
    with kind("http://127.0.0.1:9", retries=0) as client, pytest.raises(errors.ConnectError):
        client.gathernd([1.0], [[0]])


def test_a_page_of_the_service_that_is_not_the_route_is_not_found(kind: Any, server: Server) -> None:
    with kind(server.url + "/elsewhere") as client, pytest.raises(errors.NotFound):
        client.gathernd([1.0], [[0]])


class TestFunctions:
    """The module's own functions, which find their service in the environment."""

    @pytest.fixture(autouse=True)
    def _environment(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATHERND_URL", server.url)

    def test_the_service_of_the_environment_is_asked_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data, indices = np.array([[1.0, 2.0], [3.0, 4.0]]), [[1], [0]]
        for found in (
            package.gathernd(data, np.array(indices), 1),
            package.gathernd(data=data, indices=indices, batch_dims=1),  # as modeci_mdf's function is called
        ):
            assert found.tolist() == [2.0, 3.0]
        monkeypatch.setenv("GATHERND_URL", "http://127.0.0.1:9")
        monkeypatch.setattr("gathernd._retries._FIRST_PAUSE", 0.001)
        with pytest.raises(errors.ConnectError):
            package.gathernd([1.0], [[0]])


def test_a_forked_child_has_connections_of_its_own(server: Server) -> None:
    program = (
        "import os, sys, gathernd\n"
        "client = gathernd.Client(sys.argv[1], timeout=20, retries=0)\n"
        "numbers = list(range(1000))\n"
        "assert client.gather(numbers, [3]).tolist() == [3]\n"
        "child = os.fork()\n"
        "for number in range(0 if child else 500, 1000, 2):\n"
        "    assert client.gather(numbers, [number]).tolist() == [number]\n"
        "client.close()\n"
        "if not child:\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, server.url], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_call_of_many_threads_gets_its_own_answer(service: Any) -> None:
    numbers = list(range(1000))
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda number: service.gather(numbers, [number]).tolist(), numbers[:400])
        assert list(answers) == [[number] for number in numbers[:400]]
