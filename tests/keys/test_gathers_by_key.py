"""Gathers by key: as the gather by the positions of the keys' rows, and what becomes of keys that a table lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.store import Resident
from tests.keyed import KEYS, LACKED, TABLE, Column, Tables, ask, by_key, refused, table, tensor
from tests.store.conftest import folder, store
from tests.strings import packed

__all__ = ["folder", "store"]
every_type = pytest.mark.parametrize("dtype", [*KEYS])


@every_type
@pytest.mark.parametrize(("rows", "shape"), [([4, 0, 0, 2], [4]), ([1, 3], [2, 1]), ([2], []), ([], [0, 7])])
def test_keys_give_what_the_positions_of_their_rows_give(dtype: str, rows: list[int], shape: list[int]) -> None:
    found = ask(by_key(dtype, [KEYS[dtype][row] for row in rows], shape))
    assert found.pop("missing") == 0
    assert found == ask({"data": {"tensor": dtype}, "indices": tensor("int64", shape, rows)})


@every_type
def test_missing_keys_are_an_error_that_lists_the_first_ten(dtype: str) -> None:
    lacked = LACKED[dtype]
    error = refused(by_key(dtype, [KEYS[dtype][0], lacked] * 12, [12, 2]))
    assert (error.code, error.total, len(error.places)) == ("key_not_found", 12, 10)
    assert [place.position for place in error.places] == [(row, 1) for row in range(10)]
    assert {place.value for place in error.places} == {lacked}
    assert error.places[0].pointer == "/keys/values/1"
    assert error.detail == f"keys[0,1] = {lacked!r} is not a key of {dtype!r}, and 11 more"


@every_type
@pytest.mark.parametrize("dialect", ["onnx-13", "onnx-1", "openvino-8"])
def test_missing_keys_give_rows_of_the_fill_value(dtype: str, dialect: str) -> None:
    asked = by_key(dtype, [LACKED[dtype], KEYS[dtype][2]], missing="fill", dialect=dialect, axis=0)
    found = ask(asked)
    assert found["output"]["values"] == [0, 0, 0, *TABLE[2].tolist()]
    assert (found["missing"], found.get("replaced"), found.get("found")) == (1, None, None)
    assert ask({**asked, "fill_value": -1.5})["output"]["values"] == [-1.5, -1.5, -1.5, *TABLE[2].tolist()]


@every_type
def test_a_row_stands_for_missing_keys_by_its_position_or_key(dtype: str) -> None:
    asked = by_key(dtype, [LACKED[dtype], KEYS[dtype][2], LACKED[dtype]], missing="row", found=True)
    wanted = TABLE[[1, 2, 1]].reshape(-1).tolist()
    for row in (1, {"key": KEYS[dtype][1]}):
        found = ask({**asked, "missing_row": row})
        assert found["output"]["values"] == wanted
        assert found["missing"] == 2
        assert found["found"] == {"dtype": "bool", "shape": [3], "values": [False, True, False]}


@pytest.mark.parametrize("missing", [{}, {"missing": "fill"}, {"missing": "row", "missing_row": 0}])
def test_a_table_without_rows(missing: dict[str, Any]) -> None:
    asked = {"data": {"tensor": "empty"}, "keys": tensor("int64", [1], [7]), **missing}
    if missing == {"missing": "fill"}:
        assert ask(asked)["output"]["values"] == [0, 0, 0]
    else:
        assert refused(asked).code == ("index_out_of_bounds" if missing else "key_not_found")


def test_rows_of_other_types_are_filled_and_converted() -> None:
    store = Tables()
    store.tables["int64"] = table(Column("int64", [3, 4]), np.array([1.5, 2.5]))
    found = ask(by_key("int64", [4, 9], missing="fill", fill_value="NaN", output_dtype="float32"), store=store)
    assert found["output"] == tensor("float32", [2], [2.5, "NaN"])
    store.tables["int64"] = Resident(packed(["x", "yz"], (2,)), "content-0", keys=Column("int64", [3, 4]))
    found = ask(by_key("int64", [4, 9, 3], missing="fill", fill_value="none"), store=store)
    assert found["output"] == tensor("string", [3], ["yz", "none", "x"])


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("no_keys", "/data/tensor", {"data": {"tensor": "plain"}}),
        ("tensor_not_found", "/data/tensor", {"data": {"tensor": "none"}}),
        ("unsupported_dtype", "/keys/dtype", {"keys": tensor("uint64", [1], [1001])}),
        ("unsupported_dtype", "/keys/dtype", {"keys": tensor("string", [1], ["1001"])}),
        ("unsupported_dtype", "/keys/dtype", {"keys": tensor("float32", [1], [1001])}),
        ("unsupported_dtype", "/keys/dtype", {"data": {"tensor": "uint64"}, "keys": tensor("int32", [1], [7])}),
        ("invalid_field", "/indices", {"indices": tensor("int64", [1], [0])}),
        ("invalid_field", "/keys", {"data": tensor("float32", [1], [1])}),
        ("invalid_field", "/axis", {"axis": 1}),
        ("invalid_field", "/out_of_bounds", {"out_of_bounds": "clip"}),
        ("invalid_field", "/fill_value", {"fill_value": 0}),
        ("invalid_field", "/missing", {"missing": "clip"}),
        ("invalid_field", "/missing_row", {"missing": "row"}),
        ("invalid_field", "/missing_row", {"missing_row": 0}),
        ("invalid_field", "/missing_row", {"missing": "row", "missing_row": "7"}),
        ("invalid_field", "/missing_row", {"missing": "row", "missing_row": True}),
        ("invalid_field", "/missing_row", {"missing": "row", "missing_row": {"key": 7, "row": 1}}),
        ("index_out_of_bounds", "/missing_row", {"missing": "row", "missing_row": 5}),
        ("index_out_of_bounds", "/missing_row", {"missing": "row", "missing_row": -1}),
        ("index_out_of_bounds", "/missing_row", {"missing": "row", "missing_row": 10**30}),
        ("key_not_found", "/missing_row/key", {"missing": "row", "missing_row": {"key": 8}}),
        ("value_not_representable", "/missing_row/key", {"missing": "row", "missing_row": {"key": "8"}}),
        ("value_not_representable", "/missing_row/key", {"missing": "row", "missing_row": {"key": 2**63}}),
        ("value_not_representable", "/fill_value", {"missing": "fill", "fill_value": "x"}),
        ("value_not_representable", "/keys/values/0", {"keys": tensor("int64", [1], [2**63])}),
        ("element_count_mismatch", "/keys/values", {"keys": tensor("int64", [2], [1])}),
        ("invalid_field", "/found", {"found": 1}),
        ("invalid_field", "/device", {"device": "tpu"}),
    ],
)
def test_a_wrong_request_is_refused(code: str, pointer: str, change: dict[str, Any]) -> None:
    error = refused(by_key("int64", [1001]) | change)
    assert (error.code, error.places[0].pointer) == (code, pointer), error


@pytest.mark.parametrize("field", [{"missing": "error"}, {"missing_row": 0}, {"found": False}])
def test_fields_for_keys_are_refused_beside_indices(field: dict[str, Any]) -> None:
    error = refused({"data": {"tensor": "int64"}, "indices": tensor("int64", [1], [0]), **field})
    assert (error.code, error.places[0].pointer) == ("invalid_field", f"/{next(iter(field))}")
