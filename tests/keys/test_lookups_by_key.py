"""Lookups with features by key: as the lookup by the positions of the keys' rows."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import GatherError
from tests.keyed import KEYS, LACKED, TABLE, ask, refused, tensor

every_type = pytest.mark.parametrize("dtype", [*KEYS])
BAGS: dict[str, Any] = {"offsets": tensor("int64", [3], [0, 2, 2]), "pooling": "sum"}


def feature(dtype: str, keys: list[Any], **more: Any) -> dict[str, Any]:
    return {"tensor": dtype, "keys": tensor(dtype, [len(keys)], keys), **more}


def by_position(dtype: str, rows: list[int], **more: Any) -> dict[str, Any]:
    return {"tensor": dtype, "indices": tensor("int64", [len(rows)], rows), **more}


def look_up(*features: Any, **more: Any) -> Any:
    return ask({"features": features, **more}, "lookup")


def wrong(*features: Any, **more: Any) -> GatherError:
    return refused({"features": features, **more}, "lookup")


@every_type
@pytest.mark.parametrize("pooling", ["none", "sum", "mean", "max"])
def test_keys_give_what_the_positions_of_their_rows_give(dtype: str, pooling: str) -> None:
    rows = [3, 0, 4]
    more = {} if pooling == "none" else BAGS | {"pooling": pooling}
    found = look_up(feature(dtype, [KEYS[dtype][row] for row in rows], **more))
    assert found.pop("missing") == 0
    assert found == look_up(by_position(dtype, rows, **more))


def test_features_by_key_and_by_position_go_together() -> None:
    names = [*KEYS]
    found = look_up(
        *(feature(name, KEYS[name][:2]) for name in names), by_position("plain", [0, 9]), out_of_bounds="clip"
    )
    wanted = look_up(*(by_position(name, [0, 1]) for name in names), by_position("plain", [0, 4]))
    assert found["output"] == wanted["output"]
    assert (found["missing"], found["replaced"]) == (0, 1)


@every_type
def test_rows_of_missing_keys_are_filled_in_bags_too(dtype: str) -> None:
    keys = [KEYS[dtype][1], LACKED[dtype], LACKED[dtype]]
    found = look_up(feature(dtype, keys, missing="fill", found=True), fill_value=0.5)
    assert found["output"]["values"] == [*TABLE[1].tolist(), *[0.5] * 6]
    assert found["features"][0]["found"] == tensor("bool", [3], [True, False, False])
    assert (found["missing"], found.get("replaced")) == (2, None)
    found = look_up(feature(dtype, keys, missing="fill", **BAGS), fill_value=0.5)
    assert found["output"]["values"] == [*(TABLE[1] + 0.5).tolist(), 0, 0, 0, 0.5, 0.5, 0.5]


@every_type
def test_each_feature_says_what_becomes_of_its_missing_keys(dtype: str) -> None:
    lacked = [LACKED[dtype], KEYS[dtype][3]]
    found = look_up(
        feature(dtype, lacked, missing="row", missing_row={"key": KEYS[dtype][2]}, found=True),
        feature(dtype, lacked, missing="fill"),
        feature(dtype, KEYS[dtype][:2], found=True),
        concat=False,
    )
    values = [output["values"] for output in found["outputs"]]
    assert values == [
        TABLE[[2, 3]].reshape(-1).tolist(), [0, 0, 0, *TABLE[3].tolist()], TABLE[[0, 1]].reshape(-1).tolist()
    ]  # fmt: skip
    assert [one.get("found", {}).get("values") for one in found["features"]] == [[False, True], None, [True, True]]
    assert found["missing"] == 2


@every_type
def test_missing_keys_are_an_error_after_offsets(dtype: str) -> None:
    good, bad = feature(dtype, KEYS[dtype][:1]), feature(dtype, [LACKED[dtype]] * 12)
    error = wrong(good, bad, concat=False)
    assert (error.code, error.total, len(error.places)) == ("key_not_found", 12, 10)
    assert error.places[0].pointer == "/features/1/keys/values/0"
    bags = BAGS | {"offsets": tensor("int64", [2], [0, 2])}
    assert wrong(bad, feature(dtype, KEYS[dtype][:1], **bags), concat=False).code == "offsets_invalid"


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("no_keys", "/features/0/tensor", {"tensor": "plain"}),
        ("unsupported_dtype", "/features/0/keys/dtype", {"keys": tensor("uint64", [1], [7])}),
        ("unsupported_dtype", "/features/0/offsets/dtype", BAGS | {"offsets": tensor("int32", [1], [0])}),
        ("invalid_field", "/features/0/indices", {"indices": tensor("int64", [1], [0])}),
        ("invalid_field", "/features/0/missing", {"missing": "none"}),
        ("invalid_field", "/features/0/missing_row", {"missing": "row"}),
        ("invalid_field", "/features/0/missing_row", {"missing_row": 0}),
        ("index_out_of_bounds", "/features/0/missing_row", {"missing": "row", "missing_row": 5}),
        ("rank_mismatch", "/features/0/keys/shape", BAGS | {"keys": tensor("int64", [1, 1], [0])}),
    ],
)
def test_a_wrong_feature_is_refused(code: str, pointer: str, change: dict[str, Any]) -> None:
    error = wrong(feature("int64", [0]) | change)
    assert (error.code, error.places[0].pointer) == (code, pointer), error


def test_fields_that_need_the_other_kind_of_feature_are_refused() -> None:
    for error, pointer in (
        (wrong({"tensor": "int64"}), "/features/0/indices"),
        (wrong(by_position("int64", [0], found=True)), "/features/0/found"),
        (wrong(feature("int64", [0]), out_of_bounds="clip"), "/out_of_bounds"),
        (wrong(feature("int64", [0]), fill_value=1), "/fill_value"),
    ):
        assert (error.code, error.places[0].pointer) == ("invalid_field", pointer)
