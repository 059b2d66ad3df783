"""Lookups of many tensors through the client: arrays, bags by offsets and by lengths, what the service says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gathernd import Feature, LookupResult, errors, features_of
from tests.for_each import for_each
from tests.http.lookups import Given, looped

USERS = np.random.default_rng(3).standard_normal((20, 4), dtype=np.float32)
ITEMS = np.random.default_rng(4).standard_normal((30, 3), dtype=np.float32)


@pytest.fixture(autouse=True)
def tables(service: Any) -> Iterator[None]:
    service.put("users", USERS)
    service.put("items", ITEMS)
    yield
    service.delete("users")
    service.delete("items")


def test_features_are_rows_and_bags_of_any_kind_of_array(service: Any) -> None:
    bags = looped(ITEMS, Given("", [4, 4, 9, 1, 0], [0, 3], pooling="sum"))
    wanted = np.concatenate((USERS[[7, 3]], bags), axis=1)
    for second in (
        Feature("items", [4, 4, 9, 1, 0], offsets=[0, 3], pooling="sum"),
        Feature("items", np.array([4, 4, 9, 1, 0], np.int32), lengths=[3, 2], pooling="sum"),
        {
            "tensor": "items",
            "indices": np.array([4, 4, 9, 1, 0], np.uint8),
            "offsets": np.array([0, 3], np.int16),
            "pooling": "sum",
        },
        ("items", [4, 4, 9, 1, 0], [0, 3], None, None, "sum"),
    ):
        found = service.lookup([("users", np.array([7, 3])), second])
        assert found.tobytes() == wanted.tobytes()
        assert found.shape == wanted.shape
    first, second = service.lookup([("users", [7, 3]), ("items", [[1, 2]])], concat=False)
    assert (first == USERS[[7, 3]]).all()
    assert (second == ITEMS[[[1, 2]]]).all()


@for_each("dtype", [np.float16, np.float32, np.float64])
def test_a_list_of_weights_takes_the_type_of_its_tensor(service: Any, dtype: Any) -> None:
    service.put("items", ITEMS.astype(dtype))
    table, weights = ITEMS.astype(dtype), [1, -2.5, 0.1]
    wanted = looped(table, Given("", [4, 9, 1], [0, 2], np.array(weights, dtype), "sum"))
    found = service.lookup([Feature("items", [4, 9, 1], [0, 2], weights=weights, pooling="sum"), ("items", [4, 9])])
    assert found.dtype == dtype
    assert found[:, :3].tobytes() == wanted.tobytes()
    for feature in features_of([4, 9, 1], [2, 1], ["items"], weights):
        assert service.lookup([feature]).tobytes() == wanted.tobytes()
    if dtype is np.float16:
        with pytest.raises(ValueError, match="cannot hold"):
            service.lookup([Feature("items", [4], [0], weights=[1e6], pooling="sum")])
    with pytest.raises(errors.TensorNotFound):
        service.lookup([Feature("nobody", [4], [0], weights=[1.0], pooling="sum")])


def test_offsets_may_have_the_end_of_the_last_bag(service: Any) -> None:
    begins = Feature("items", [4, 9, 1], [0, 2], pooling="sum")
    ended = Feature("items", [4, 9, 1], [0, 2, 3], pooling="sum", include_last_offset=True)
    assert service.lookup([ended]).tobytes() == service.lookup([begins]).tobytes()
    with pytest.raises(ValueError, match="include_last_offset and no offsets"):
        service.lookup([Feature("items", [4], lengths=[1], pooling="sum", include_last_offset=True)])


@for_each("lengths", [[1.5, 1.5], [2.0, 1.0], [True, True]])
def test_lengths_that_are_no_integers_are_refused_and_not_cut(service: Any, lengths: list[Any]) -> None:
    indices = [1] * int(sum(lengths))
    with pytest.raises(TypeError, match="integers"):
        service.lookup([Feature("items", indices, lengths=lengths, pooling="sum")])
    with pytest.raises(TypeError, match="integers"):
        features_of(indices, lengths, ["items"])


@for_each("wrong", [[1.5, 2.5], [1.0, 2.0], [True, False], [2**63, 2**64 - 1], ["1", "2"]])
@for_each("bags", [{}, {"offsets": [0], "pooling": "sum"}, {"lengths": [2], "pooling": "sum"}])
def test_indices_that_are_no_integers_are_refused_and_not_cut(service: Any, bags: Any, wrong: list[Any]) -> None:
    with pytest.raises(TypeError, match="integers"):
        service.lookup([Feature("items", wrong, **bags)])


def test_offsets_are_integers_and_either_may_be_of_uint64(service: Any) -> None:
    for wrong in ([0.0], [False], [2**63]):
        with pytest.raises(TypeError, match="integers"):
            service.lookup([Feature("items", [1, 2], offsets=wrong, pooling="sum")])
    wanted = looped(ITEMS, Given("", [4, 9], [0, 1], pooling="sum"))
    unsigned = Feature("items", np.array([4, 9], np.uint64), offsets=np.array([0, 1], np.uint64), pooling="sum")
    assert service.lookup([unsigned]).tobytes() == wanted.tobytes()


def test_the_values_and_lengths_of_a_keyed_jagged_tensor(service: Any) -> None:
    values, lengths = np.array([1, 2, 3, 4, 5, 6]), np.array([2, 1, 0, 3])
    features = features_of(values, lengths, ["users", "items"])
    first = looped(USERS, Given("", [1, 2, 3], [0, 2], pooling="sum"))
    second = looped(ITEMS, Given("", [4, 5, 6], [0, 0], pooling="sum"))
    assert service.lookup(features).tobytes() == np.concatenate((first, second), axis=1).tobytes()
    weighted = features_of(values, lengths, ["users", "users"], np.ones(6, np.float32))
    assert service.lookup(weighted, concat=False)[0].tobytes() == first.tobytes()
    for wrong in (([1, 2], [3], ["users"]), ([1], [1, 0, 0], ["users", "items"]), ([1], [2, -1], ["users"])):
        with pytest.raises(ValueError, match="lengths"):
            features_of(*wrong)


def test_pytorch_s_tensors_go_and_come(service: Any) -> None:
    torch = pytest.importorskip("torch")
    features = features_of(torch.tensor([1, 2, 3]), torch.tensor([2, 1], dtype=torch.int32), ["users"])
    found = service.lookup(features, as_torch=True)
    assert torch.is_tensor(found)
    assert found.numpy().tobytes() == looped(USERS, Given("", [1, 2, 3], [0, 2], pooling="sum")).tobytes()


def test_what_the_service_says_of_a_lookup(service: Any) -> None:
    asked = [("users", [99, 3]), ("items", [0, -1]), ("users", [0, 0])]
    found = service.lookup(asked, out_of_bounds="fill", fill_value=7.0, with_info=True)
    assert isinstance(found, LookupResult)
    assert found.replaced == 2
    assert (found.output[0, :4] == 7).all()
    assert list(found.etags) == [service.metadata(name).etag for name in ("users", "items", "users")]
    assert found.request_id
    assert found.timings["kernel"] >= 0
    assert service.lookup(asked[2:], with_info=True).replaced is None


def test_types_that_safetensors_lacks_come_too(service: Any) -> None:
    words = np.array(["a", "é", ""], object)
    service.put("words", words)
    service.put("complex", np.array([[1 + 2j], [3j]]))
    try:
        text, numbers = service.lookup([("words", [1, 0]), ("complex", [1])], concat=False)
        assert text.tolist() == ["é", "a"]
        assert numbers.tolist() == [[3j]]
    finally:
        service.delete("words")
        service.delete("complex")


def test_refusals_are_exceptions(service: Any) -> None:
    with pytest.raises(errors.OffsetsInvalid) as wrong:
        service.lookup([("items", [1, 2], [0, 5], None, None, "sum")])
    assert wrong.value.errors[0].pointer == "/0.offsets"
    with pytest.raises(ValueError, match="offsets or lengths"):
        service.lookup([Feature("items", [1], offsets=[0], lengths=[1], pooling="sum")])
    with pytest.raises(ValueError, match="add up"):
        service.lookup([Feature("items", [1], lengths=[2], pooling="sum")])
