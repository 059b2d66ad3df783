"""Bags of lookups whose padding is skipped, and whose empty ones are of a default row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from tests.conftest import samples
from tests.keyed import KEYS, LACKED, TABLE, ask, refused, tensor

RANDOM = np.random.default_rng(41)


def looked_up(feature: dict[str, Any], **more: Any) -> Any:
    return ask({"features": [feature], **more}, "lookup")


def values(feature: dict[str, Any], **more: Any) -> list[float]:
    found: list[float] = looked_up(feature, **more)["output"]["values"]
    return found


def wrong(feature: dict[str, Any], **more: Any) -> GatherError:
    return refused({"features": [feature], **more}, "lookup")


def bags(rows: list[int], cuts: list[int], dtype: str = "int64", **more: Any) -> dict[str, Any]:
    offsets = tensor(dtype, [len(cuts)], cuts)
    indices = tensor(dtype, [len(rows)], rows)
    return {"tensor": "int64", "indices": indices, "offsets": offsets, "pooling": "sum", **more}


def pooled(
    rows: list[int], cuts: list[int], weights: list[float], pooling: str, padding: int | None, default: int | None
) -> list[float]:
    """Each bag by itself, in plain Python."""
    found: list[Any] = []
    for start, stop in pairwise([*cuts, len(rows)]):
        entries = [(row, weight) for row, weight in zip(rows, weights, strict=True)][start:stop]
        entries = [(row, weight) for row, weight in entries if row != padding]
        if not entries and default is not None:
            entries = [(default, 1.0)]
        one = np.array([TABLE[row] * np.float32(weight) for row, weight in entries], np.float32).reshape(-1, 3)
        if not entries:
            found.append(np.zeros(3))
        else:
            found.append(getattr(one, pooling)(axis=0))
    flat: list[float] = np.array(found, np.float32).reshape(-1).tolist()
    return flat


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("last", [False, True])
def test_random_bags_are_pooled_as_one_by_one(pooling: str, dtype: str, last: bool) -> None:
    for _ in range(samples(160)):
        rows = RANDOM.integers(0, 5, RANDOM.integers(0, 12)).tolist()
        cuts = [0, *sorted(RANDOM.integers(0, len(rows) + 1, RANDOM.integers(0, 5)).tolist())]
        padding, default = (int(RANDOM.integers(0, 5)) if RANDOM.random() < 0.7 else None for _ in range(2))
        weights = [1.0] * len(rows)
        more: dict[str, Any] = {"pooling": pooling}
        if pooling == "sum" and RANDOM.random() < 0.5:
            weights = (RANDOM.integers(-8, 8, len(rows)) / 4).tolist()
            more["weights"] = tensor("float32", [len(rows)], weights)
        if padding is not None:
            more["padding_index"] = padding
        if default is not None:
            more["default_index"] = default
        given = [*cuts, len(rows)] if last else cuts
        found = values(bags(rows, given, dtype, include_last_offset=last, **more))
        assert found == pytest.approx(pooled(rows, cuts, weights, pooling, padding, default))


@pytest.mark.parametrize("dtype", [*KEYS])
@pytest.mark.parametrize("lacked", [False, True])
def test_a_key_is_padding_whether_or_not_the_table_has_it(dtype: str, lacked: bool) -> None:
    padding = LACKED[dtype] if lacked else KEYS[dtype][1]
    keys = [KEYS[dtype][0], padding, KEYS[dtype][2], padding]
    feature = {
        "tensor": dtype, "keys": tensor(dtype, [4], keys), "pooling": "sum", "padding_index": {"key": padding},
        "offsets": tensor("int64", [3], [0, 3, 4]), "default_index": {"key": KEYS[dtype][4]},
    }  # fmt: skip
    found = looked_up(feature | {"found": True})
    assert found["features"][0]["found"]["values"] == [True, not lacked, True, not lacked]
    assert found["output"]["values"] == [*(TABLE[0] + TABLE[2]).tolist(), *TABLE[4].tolist(), *TABLE[4].tolist()]
    assert found["missing"] == 0
    assert values(feature | {"default_index": 3})[3:] == [*TABLE[3].tolist()] * 2


def test_long_keys_are_padding_if_they_are_equal_to_the_last_byte() -> None:
    padding = "p" * 100_000
    keys = [padding, padding[:-1] + "q", padding + "p", padding]
    feature = {
        "tensor": "string", "keys": tensor("string", [4], keys), "pooling": "sum", "padding_index": {"key": padding},
        "offsets": tensor("int64", [1], [0]), "missing": "fill",
    }  # fmt: skip
    assert looked_up(feature)["missing"] == 2


def test_an_index_out_of_bounds_is_told_at_its_own_place() -> None:
    feature = bags([2, 2, 0, 9, 1], [0, 2], padding_index=2)
    error = wrong(feature)
    assert (error.code, error.places[0].pointer) == ("index_out_of_bounds", "/features/0/indices/values/3")
    assert values(feature, out_of_bounds="clip") == [0, 0, 0, *(TABLE[0] + TABLE[4] + TABLE[1]).tolist()]
    filled = looked_up(feature, out_of_bounds="fill", fill_value=100)
    assert filled["output"]["values"] == [0, 0, 0, *(TABLE[0] + 100 + TABLE[1]).tolist()]


def test_a_missing_key_is_told_at_its_own_place() -> None:
    feature = {
        "tensor": "int64", "keys": tensor("int64", [3], [0, 5, 6]), "pooling": "sum", "padding_index": {"key": 0},
        "offsets": tensor("int64", [1], [0]),
    }  # fmt: skip
    error = wrong(feature)
    assert (error.code, error.total, error.places[0].pointer) == ("key_not_found", 2, "/features/0/keys/values/1")


@pytest.mark.parametrize(
    ("code", "pointer", "feature"),
    [
        ("index_out_of_bounds", "padding_index", bags([0], [0], padding_index=5)),
        ("index_out_of_bounds", "default_index", bags([0], [0], default_index=-1)),
        ("invalid_field", "padding_index", bags([0], [0], padding_index="0")),
        ("invalid_field", "padding_index", bags([0], [0], padding_index={"key": 0})),
        ("invalid_field", "default_index", bags([0], [0], default_index={"key": 0})),
        (
            "invalid_field",
            "padding_index",
            {"tensor": "int64", "indices": tensor("int64", [1], [0]), "padding_index": 0},
        ),
        ("offsets_invalid", "offsets/values/1", bags([0, 1], [0, 3], padding_index=0)),
        ("offsets_invalid", "offsets/values/0", bags([0, 1], [1, 1], default_index=0)),
    ],
)
def test_what_is_refused(code: str, pointer: str, feature: dict[str, Any]) -> None:
    error = wrong(feature)
    assert (error.code, error.places[0].pointer) == (code, f"/features/0/{pointer}"), error
