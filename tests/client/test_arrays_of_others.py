"""Arrays of PyTorch, JAX and CuPy, and lists; stand-ins have what the client asks of JAX's and CuPy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gathernd._array_bytes import ELEMENT_TYPES, decode
from gathernd._arrays_of_others import as_array, as_type, decode_for_torch, encode_value
from gathernd._selection import select
from tests.client.test_gathers import TYPES, same, sample
from tests.for_each import for_each

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)


class OnGpu:
    """What CuPy's array has: DLPack on a GPU, no `__array__`, and `get`."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.dtype, self.copied = array.dtype, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def get(self) -> NDArray[Any]:
        self.copied += 1
        return self._array


class OnAnotherDevice:
    """What an exporter by DLPack has whose memory the processor does not read, and which can copy it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, dl_device: Any = None, copy: Any = None, **more: Any) -> Any:
        assert (tuple(dl_device), copy) == ((1, 0), True)
        return self._array.__dlpack__(**more)


def test_what_lies_on_a_gpu_is_copied_from_there(service: Any) -> None:
    data = OnGpu(TABLE)
    assert same(service.gathernd(data, OnGpu(np.array([[3]]))), TABLE[[3]])
    assert data.copied == 1
    assert same(service.gathernd(OnAnotherDevice(TABLE), [[3]]), TABLE[[3]])


@for_each(
    ("value", "dtype", "expected"),
    [
        ([1, 2], "float32", [1.0, 2.0]),
        ([0.1], "float16", [np.float16(0.1)]),
        ([[0.5]], "bfloat16", [[0.5]]),
        ([1.0, -3.0], "int8", [1, -3]),
        ([255], "uint8", [255]),
        (2, "int64", 2),
        ([float("inf"), float("nan")], "float32", [float("inf"), float("nan")]),
        ([1], "complex64", [1 + 0j]),
        ([True], "bool", [True]),
        ([], "int32", []),
        (["a"], "string", ["a"]),
        ([2**53, 0.5], "float32", [2**53, 0.5]),
        ([1e20, 1], "bfloat16", [ml_dtypes.bfloat16(1e20), 1]),
        ([1e20, 1j], "complex64", [np.complex64(1e20), 1j]),
    ],
)
def test_a_list_becomes_the_tensors_type(value: Any, dtype: str, expected: Any) -> None:
    found = as_type(value, dtype)
    if dtype == "string":
        assert found.tolist() == expected
    else:
        np.testing.assert_array_equal(found.astype(complex), np.array(expected, complex))
        assert found.dtype.name == dtype


@for_each(
    ("value", "dtype"),
    [
        ([1.5], "int32"), ([300], "uint8"), ([-1], "uint64"), ([1e300], "float32"), ([1j], "float64"), ([2], "bool"),
        (["a"], "float32"), ([2**60 + 1], "float64"), ([None], "float32"), ([2**70], "int64"),
        ([2**53 + 1, 0.5], "int64"), ([2**53 + 1, 0.5], "float64"), ([2**63, -1], "int64"), ([1e300, 1], "int64"),
        ([float("inf")], "int8"), ([2**63 + 1, 1j], "complex64"), ([1e300, 1], "bfloat16"),
    ],
)  # fmt: skip
def test_a_list_that_the_type_cannot_hold_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises(ValueError, match=dtype):
        as_type(value, dtype)


@for_each(
    ("value", "dtype"),
    [
        ([2**63 + 1, 1], "uint64"), ([[2**64 - 1], [0]], "uint64"), ([2**53 + 1, 1.0], "int64"),
        ([np.int64(2**53 + 1), 1.0], "int64"), ([-(2**53) - 1, 0.0], "int64"),
    ],
)  # fmt: skip
def test_integers_of_a_list_stay_exact_where_numpy_makes_floats_of_them(value: Any, dtype: str) -> None:
    found = as_type(value, dtype)
    assert found.dtype == dtype
    assert found.tolist() == np.array(value, object).astype(dtype).tolist() == np.array(value, object).tolist()


def test_strings_of_a_list_keep_the_nul_at_their_end(service: Any) -> None:
    texts = ["a\0", "b", "\0"]
    assert service.gather(texts, [0, 2]).tolist() == ["a\0", "\0"]
    service.put("texts", [texts])
    service.scatter("texts", [[0, 1]], ["c\0\0"])
    assert service.get("texts").tolist() == [["a\0", "c\0\0", "\0"]]
    service.delete("texts")


@for_each("value", [["a", 1], [1.5, "a"], ["a", None], ["a", b"b"]])
def test_what_stands_beside_a_string_is_not_made_one(service: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="must hold str only"):
        service.gather(value, [0])


def test_masked_items_are_refused_and_not_unmasked(service: Any) -> None:
    masked = np.ma.MaskedArray(TABLE, mask=TABLE == 7)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: service.gather(masked, [1]),
        lambda: service.gather(TABLE, np.ma.MaskedArray([1, 2], mask=[False, True])),
        lambda: service.gather(TABLE, np.ma.MaskedArray([1, 2], mask=[False, True], dtype=np.int8)),
        lambda: service.put("masked", masked),
        lambda: service.put("masked", (row for row in masked)),
    )
    for call in calls:
        with pytest.raises(TypeError, match="masked"):
            call()
    assert same(service.gather(np.ma.MaskedArray(TABLE), [1]), TABLE[[1]])


def test_updates_given_as_a_list_have_the_tensors_type(service: Any) -> None:
    service.put("lists", TABLE)
    service.scatter("lists", [[1]], [[1, 2, 3, 4, 5]])
    assert service.get("lists", rows=(1, 2)).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0]]
    service.put("lists", TABLE.astype(np.int8))
    with pytest.raises(ValueError, match="int8"):
        service.scatter("lists", [[1]], [[0.5] * 5])
    service.delete("lists")


class TestTorch:
    """PyTorch itself, where it is installed."""

    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="needs the package torch")

    def test_a_tensor_that_asks_for_a_gradient_is_taken(self, torch: Any, service: Any) -> None:
        weights = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))
        assert same(service.gathernd(weights, torch.tensor([[2]])), weights.detach().numpy()[[2]])
        assert same(as_array(weights.T), weights.detach().numpy().T)
        conjugate = torch.tensor([1 + 2j]).conj()
        assert as_array(conjugate).tolist() == [1 - 2j]

    def test_bfloat16_goes_and_comes(self, torch: Any, service: Any) -> None:
        data = torch.arange(12.0).reshape(4, 3).to(torch.bfloat16).requires_grad_()
        service.put("torch", data)
        assert service.metadata("torch").dtype == "bfloat16"
        back = service.gathernd("torch", [[2], [0]], as_torch=True)
        assert back.dtype == torch.bfloat16
        assert torch.equal(back, data.detach()[[2, 0]])
        assert torch.equal(service.get("torch", as_torch=True), data.detach())
        assert torch.equal(service.gathernd(data.T, [[1]], as_torch=True), data.detach().T[[1]])
        assert as_array(data).dtype.name == "bfloat16"
        assert encode_value(torch.tensor(1.5, dtype=torch.bfloat16)).shape == ()
        found = service.gather("torch", [1], as_torch=True, with_info=True)
        assert torch.equal(found.array, data.detach()[[1]])
        service.delete("torch")

    def test_every_type_becomes_torchs(self, torch: Any) -> None:
        for dtype in TYPES[:-1]:
            encoded = encode_value(sample(dtype, (3, 2)))
            raw = bytearray(encoded.raw)
            tensor = decode_for_torch(ELEMENT_TYPES[dtype], (3, 2), raw)
            assert str(tensor.dtype) == f"torch.{dtype}"
            assert same(as_array(tensor), decode(ELEMENT_TYPES[dtype], (3, 2), raw))
            assert decode_for_torch(ELEMENT_TYPES[dtype], (0, 2), b"").shape == (0, 2)
        with pytest.raises(TypeError, match="strings"):
            decode_for_torch(ELEMENT_TYPES["string"], (3, 2), bytearray(encoded.raw))


@for_each(
    ("lists", "said"),
    [
        ([[1, 2], [3]], "1 item at [1], 2 at [0]"),
        ([[[1, 2]], [[3, 4, 5]]], "3 items at [1][0], 2 at [0][0]"),
        ([[1], [2], 3], "a single item at [2], 1 at [0]"),
        ([1, (2, 3)], "2 items at [1], a single item at [0]"),
        ([np.zeros(2), np.zeros(3)], "3 items at [1], 2 at [0]"),
    ],
)
def test_lists_that_are_not_nested_evenly_are_refused_with_the_place(service: Any, lists: Any, said: str) -> None:
    message = re.escape(f"the lists are not nested evenly: {said}")
    service.put("even", TABLE)
    for call in (
        lambda: service.put("uneven", lists),
        lambda: service.gather(TABLE, lists),
        lambda: service.scatter("even", [[0]], lists),
        lambda: select(lists, None),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    service.delete("even")
