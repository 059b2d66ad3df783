"""Tables with keys through the client: uploads, rows by key, upserts and removals, what is said of missing keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gathernd import Feature, LookupResult, Result, RowsChanged, errors

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
KEYS: dict[str, Any] = {
    "int64": np.array([7, -1, 3, 2**62]),
    "uint64": np.array([7, 1, 3, 2**63], np.uint64),
    "string": np.array(["a", "bé", "", "ü\0z"], object),
}
LACKED: dict[str, Any] = {"int64": 5, "uint64": 5, "string": "b"}
every_type = pytest.mark.parametrize("dtype", KEYS)


@pytest.fixture
def table(service: Any) -> Iterator[str]:
    """The name of a table that is removed afterwards."""
    yield "keyed"
    if service.exists("keyed"):
        service.delete("keyed")


def asked(dtype: str) -> Any:
    """Keys of which a table lacks the second."""
    return np.array([KEYS[dtype][2], LACKED[dtype], KEYS[dtype][0]], KEYS[dtype].dtype)


@every_type
def test_rows_are_gathered_by_key(service: Any, table: str, dtype: str) -> None:
    info = service.put(table, ROWS, keys=KEYS[dtype], note="with keys")
    assert (info.keys.dtype, info.shape, info.note) == (dtype, (4, 3), "with keys")
    assert service.metadata(table) == info
    np.testing.assert_array_equal(service.gather(table, keys=KEYS[dtype].reshape(2, 2)), ROWS.reshape(2, 2, 3))
    np.testing.assert_array_equal(service.gather(table, [3, 0]), ROWS[[3, 0]])
    np.testing.assert_array_equal(service.get(table), ROWS)
    np.testing.assert_array_equal(service.get_keys(table), KEYS[dtype])
    as_list = KEYS[dtype][:2].tolist()  # takes the type of the table's keys
    np.testing.assert_array_equal(service.gather(table, keys=as_list), ROWS[:2])
    np.testing.assert_array_equal(service.lookup([Feature(table, keys=as_list)]), ROWS[:2])
    assert service.gather(table, keys=[]).shape == (0, 3)
    for wrong in ([True], ["7"] if dtype != "string" else [7]):
        with pytest.raises((errors.UnsupportedDtype, TypeError)):
            service.gather(table, keys=wrong)


@every_type
def test_what_comes_for_a_missing_key(service: Any, table: str, dtype: str) -> None:
    service.put(table, ROWS, keys=KEYS[dtype])
    with pytest.raises(errors.KeyNotFound) as caught:
        service.gather(table, keys=asked(dtype))
    assert (caught.value.total, caught.value.errors[0].position) == (1, (1,))
    filled = np.stack([ROWS[2], np.zeros(3), ROWS[0]])
    np.testing.assert_array_equal(service.gather(table, keys=asked(dtype), missing="fill"), filled)
    result = service.gather(table, keys=asked(dtype), missing="fill", fill_value=9, found=True)
    assert isinstance(result, Result)
    np.testing.assert_array_equal(result.array[1], [9, 9, 9])
    assert (result.missing, result.found.dtype, result.found.tolist()) == (1, bool, [True, False, True])
    for row in (1, {"key": KEYS[dtype][1]}):
        result = service.gather(table, keys=asked(dtype), missing="row", missing_row=row, with_info=True)
        np.testing.assert_array_equal(result.array, ROWS[[2, 1, 0]])
        assert (result.missing, result.found, result.replaced) == (1, None, None)


@every_type
def test_features_of_a_lookup_have_keys(service: Any, table: str, dtype: str) -> None:
    service.put(table, ROWS, keys=KEYS[dtype])
    keys = KEYS[dtype]
    bags = Feature(table, keys=keys[[0, 1, 3]], lengths=[1, 2], pooling="sum", weights=[2.0, 1.0, 1.0])
    single, pooled = service.lookup([{"tensor": table, "keys": keys[[1, 0]]}, bags], concat=False)
    np.testing.assert_array_equal(single, ROWS[[1, 0]])
    np.testing.assert_array_equal(pooled, [ROWS[0] * 2, ROWS[1] + ROWS[3]])
    found = service.lookup(
        [Feature(table, [3, 3, 3]), Feature(table, keys=asked(dtype), missing="row", missing_row=1, found=True)]
    )
    assert isinstance(found, LookupResult)
    np.testing.assert_array_equal(found.output, np.concatenate([ROWS[[3, 3, 3]], ROWS[[2, 1, 0]]], axis=1))
    assert (found.missing, found.found[0], found.found[1].tolist()) == (1, None, [True, False, True])
    keys = np.array([keys[0], LACKED[dtype], keys[2], LACKED[dtype]], keys.dtype)
    padded = Feature(
        table, keys=keys, lengths=[3, 1], pooling="sum",
        padding_index={"key": keys[1]}, default_index={"key": KEYS[dtype][3]},
    )  # fmt: skip
    np.testing.assert_array_equal(service.lookup([padded]), [ROWS[0] + ROWS[2], ROWS[3]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, ">i8"])
def test_narrower_keys_stand_for_int64(service: Any, table: str, dtype: Any) -> None:
    assert service.put(table, ROWS, keys=np.array([7, 1, 3, 9], dtype)).keys.dtype == "int64"
    np.testing.assert_array_equal(service.gather(table, keys=np.array([9, 1], dtype)), ROWS[[3, 1]])
    assert service.gather(table, keys=7).shape == (3,)


def test_strings_of_numpy_and_lists_are_keys(service: Any, table: str) -> None:
    for given in (["a", "b", "c", "d"], np.array(["a", "b", "c", "d"])):
        service.put(table, ROWS, keys=given)
        for keys in (["d", "a"], np.array(["d", "a"]), np.array(["d", "a"], object)):
            np.testing.assert_array_equal(service.gather(table, keys=keys), ROWS[[3, 0]])


@every_type
def test_files_have_rows_and_keys(service: Any, table: str, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    keys = KEYS[dtype].astype(str) if dtype == "string" else KEYS[dtype]
    np.save(tmp_path / "keys.npy", keys)
    service.put(table, str(tmp_path / "rows.npy"), keys=str(tmp_path / "keys.npy"))
    np.testing.assert_array_equal(service.get_keys(table), keys)
    tensors = {"data": ROWS, "keys": keys}
    if dtype == "string":
        utf8 = [key.encode() for key in keys.tolist()]
        own = {"keys.offsets": np.cumsum([0, *map(len, utf8)]), "keys.bytes": np.frombuffer(b"".join(utf8), np.uint8)}
        tensors = {"data": ROWS, **own}
    save_file(tensors, tmp_path / "table.safetensors")
    service.put(table, tmp_path / "table.safetensors")
    np.testing.assert_array_equal(service.gather(table, keys=keys[[2, 0]]), ROWS[[2, 0]])
    assert service.put(table, tmp_path / "table.safetensors", tensor="data").keys is None


def test_rows_that_came_without_keys_are_given_them(service: Any, table: str) -> None:
    texts = np.array(["x", "y"], object)
    first = service.put(table, texts)
    with pytest.raises(errors.NoKeys):
        service.gather(table, keys=[7])
    with pytest.raises(errors.NoKeys):
        service.get_keys(table)
    info = service.put_keys(table, ["k", "l"], if_match=first.etag, note="keyed")
    assert (info.version, info.keys.dtype, info.note) == (first.version + 1, "string", "keyed")
    assert service.gather(table, keys=["l"]).tolist() == ["y"]
    with pytest.raises(errors.PreconditionFailed):
        service.put_keys(table, ["k", "l"], if_match=first.etag)
    with pytest.raises(TypeError, match="put_keys"):
        service.put(table, texts, keys=["k", "l"])


@every_type
def test_rows_are_upserted_and_removed(service: Any, table: str, dtype: str) -> None:
    assert service.put(table, ROWS, keys=KEYS[dtype], capacity=8).capacity == 8
    new = np.array([9] if dtype != "string" else ["new"], KEYS[dtype].dtype)
    keys = np.concatenate([KEYS[dtype][:1], new])
    done = service.upsert(table, keys, [[1, 1, 1], [2, 2, 2]], "add")
    assert isinstance(done, RowsChanged)
    assert (done.rows, done.inserted, done.removed, done.missing) == (5, 1, 0, 0)
    assert service.gather(table, keys=keys).tolist() == [[2, 3, 4], [2, 2, 2]]
    again = service.upsert(table, keys, [[1, 1, 1], [2, 2, 2]], "add", idempotency_key=done.idempotency_key)
    assert (again.etag, again.rows, again.inserted) == (done.etag, 5, 1)
    done = service.remove(table, keys.tolist(), if_match=done.etag)
    assert (done.rows, done.removed, done.missing) == (3, 2, 0)
    assert service.remove(table, keys).missing == 2
    assert sorted(service.get(table).tolist()) == ROWS[1:].tolist()


def test_what_cannot_be_keys_is_refused(service: Any, table: str) -> None:
    with pytest.raises(errors.KeysNotUnique) as caught:
        service.put(table, ROWS, keys=[7, 3, 7, 3])
    assert (caught.value.total, [place.position for place in caught.value.errors]) == (2, [(2,), (3,)])
    with pytest.raises(TypeError, match="float64"):
        service.put(table, ROWS, keys=[7.0, np.nan, 3.0, 1.0])
    with pytest.raises(TypeError, match="int"):
        service.put(table, ROWS, keys=np.array(["a", 1, "b", "c"], object))
    with pytest.raises(ValueError, match="one dimension"):
        service.put(table, ROWS, keys=[[7, 3], [1, 2]])


def test_what_does_not_go_together_is_refused_before_it_is_sent(service: Any) -> None:
    for arguments in ({}, {"indices": [0], "keys": [7]}, {"indices": [0], "missing": "fill"}):
        with pytest.raises(TypeError, match="keys="):
            service.gather("keyed", **arguments)
    with pytest.raises(TypeError, match="resident"):
        service.gather(ROWS, keys=[7])
    with pytest.raises(TypeError, match="indices, positions of rows, or keys"):
        service.lookup([{"tensor": "keyed", "indices": [0], "keys": [7]}])
