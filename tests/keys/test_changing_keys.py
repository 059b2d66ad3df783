"""Requests to tables whose keys and rows change while they are read: each answer, and each error, is of one state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from app.errors import GatherError
from app.store import Resident
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor
from tests.conftest import samples
from tests.keyed import Column, Tables, ask, tensor
from tests.keys.changing import Changing, ChangingTables, Kernel, rows_of

STATES: list[list[int]] = [
    [3, 4, 5], [5, 4, 3, 6], [3], [4, 3], [], [9, 8, 7, 6, 5, 4, 3, 2, 1], [7, 5, 3, 1], [1, 3, 5, 7, 9],
]  # fmt: skip
KEYS_ASKED = range(1, 10)


def outcome(document: Any, path: str, tables: Any, kernel: Any = None) -> Any:
    """The answer, or what an error says."""
    more = {} if kernel is None else {"kernel": kernel}
    try:
        return ask(document, path, tables, **more)
    except GatherError as error:
        return error.code, error.detail, error.total, error.places


def still(**tables: tuple[Changing, int]) -> Tables:
    """A store whose tables stay in the states of these numbers."""
    store = Tables()
    for name, (table, number) in tables.items():
        keys = [*table.states[number % len(table.states)]]
        rows = rows_of(number, len(keys))
        data = Tensor(DTYPES["float32"], rows.shape, rows.reshape(-1))
        store.tables[name] = Resident(data, f"content-{number}", keys=Column(table.dtype, keys))
    return store


def int64(values: list[int], shape: list[int] | None = None) -> dict[str, Any]:
    return tensor("int64", [len(values)] if shape is None else shape, values)


def random_missing(some: random.Random) -> dict[str, Any]:
    row: Any = some.choice([some.randrange(6), {"key": some.choice(KEYS_ASKED)}])
    found = {"found": True} if some.random() < 0.3 else {}
    return some.choice([{}, {"missing": "fill"}, {"missing": "row", "missing_row": row}]) | found


def random_gather(some: random.Random) -> tuple[str, dict[str, Any]]:
    count = some.choice([0, 1, 3])
    data: dict[str, Any] = {"data": {"tensor": "x"}}
    if some.random() < 0.2:
        data["output_dtype"] = "float64"
    if some.random() < 0.6:
        return "gather", data | {"keys": int64(some.choices(KEYS_ASKED, k=count))} | random_missing(some)
    rows = [some.randrange(-2, 5) for _ in range(count)]
    if some.random() < 0.5:
        mode: dict[str, Any] = some.choice([{}, {"out_of_bounds": "clip"}, {"out_of_bounds": "fill", "fill_value": 7}])
        return "gather", data | {"indices": int64(rows)} | mode
    if some.random() < 0.5:
        return "gather", data | {"indices": int64([1, 0, -1]), "axis": 1}
    return "gathernd", data | {"indices": int64([0, 1, 1, 0], [4, 1]), "batch_dims": 1}


def random_feature(some: random.Random, name: str) -> dict[str, Any]:
    count = some.choice([0, 1, 4])
    feature: dict[str, Any] = {"tensor": name}
    if some.random() < 0.5:
        feature |= {"pooling": some.choice(["sum", "max"]), "offsets": int64([0, count // 2])}
        if some.random() < 0.5:
            feature["default_index"] = some.randrange(4)
    if some.random() < 0.6:
        feature |= {"keys": int64(some.choices(KEYS_ASKED, k=count))} | random_missing(some)
        if "pooling" in feature and some.random() < 0.5:
            feature["padding_index"] = {"key": some.choice(KEYS_ASKED)}
            feature["default_index"] = {"key": some.choice(KEYS_ASKED)}
    else:
        feature["indices"] = int64([some.randrange(4) for _ in range(count)])
        if "pooling" in feature and some.random() < 0.5:
            feature["padding_index"] = some.randrange(4)
    return feature


def random_lookup(some: random.Random) -> tuple[str, dict[str, Any]]:
    features = [random_feature(some, some.choice("xy")) for _ in range(some.choice([1, 2, 4]))]
    document: dict[str, Any] = {"features": features, "concat": False}
    by_position = any("indices" in feature for feature in features)
    if by_position and some.random() < 0.5:
        document["out_of_bounds"] = some.choice(["clip", "fill"])
    return "lookup", document


def changing(some: random.Random) -> Changing:
    most = some.choice([0, 1, 1, 3])
    script = [some.randrange(most + 1) for _ in range(some.choice([2, 6, 40]))]
    return Changing(some.sample(STATES, len(STATES)), script)


@pytest.mark.parametrize("make", [random_gather, random_lookup])
def test_what_is_answered_is_of_one_state(make: Any) -> None:
    some = random.Random(41)
    for _ in range(samples(1600)):
        path, document = make(some)
        x, y = changing(some), changing(some)
        found = outcome(document, path, ChangingTables(x=x, y=y), Kernel([x, y]))
        if isinstance(found, dict):
            read = {one["tensor"]: one["data_etag"] for one in found.get("features", ())} or {"x": found["data_etag"]}
            numbers = {name: int(etag.removeprefix("content-")) for name, etag in read.items()}
            states = [(numbers.get("x", 0), numbers.get("y", 0))]
        else:  # the table that an error is about is in its last state, the other one in one that it had
            states = [(x.number, number) for number in range(y.number, -1, -1)]
            states += [(number, y.number) for number in range(x.number, -1, -1)]
        answers = (outcome(document, path, still(x=(x, one), y=(y, other))) for one, other in states)
        assert found in answers, (document, found)


@pytest.mark.parametrize("document", [{"keys": int64([3])}, {"indices": int64([0])}])
def test_a_table_that_never_holds_still_is_read_with_writers_kept_out(document: Any) -> None:
    x = Changing([[3, 4], [4, 3]], [1] * 100)
    found = ask({"data": {"tensor": "x"}, **document}, "gather", ChangingTables(x=x), Kernel([x]))
    assert x.holds == 1
    assert found["data_etag"] == f"content-{x.number}"
    row = x.keys.index(3) if "keys" in document else 0
    assert found["output"]["values"] == rows_of(x.number, 2)[row].tolist()
