"""Commands for tables with keys: uploads, rows by key, upserts and removals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gathernd import Client
from tests.client.conftest import done
from tests.for_each import for_each

ROWS = np.arange(6.0).reshape(3, 2)
KEYS = np.array([7, -1, 3])
Run = Callable[..., Any]


@pytest.fixture
def run(run: Run, service: Client) -> Iterator[Run]:
    """Run a command in a folder with npy files; the server has the tables `ids`, with keys, and `plain`."""
    np.save("rows.npy", ROWS)
    np.save("keys.npy", KEYS)
    for name, more in (("ids", ("--keys", "keys.npy", "--capacity", "9")), ("plain", ())):
        done(run, "tensors", "put", name, "rows.npy", *more)
    yield run
    for info in list(service.tensors()):
        service.delete(info.name)


def test_a_table_gives_its_keys_and_the_rows_of_keys(run: Run) -> None:
    shown = done(run, "tensors", "show", "ids")[0]
    assert "keys\tint64" in shown
    assert "capacity\t9 rows" in shown
    assert done(run, "tensors", "keys", "ids")[0] == "7\n-1\n3\n"
    assert done(run, "tensors", "rows", "ids", "3", "7")[0] == f"{ROWS[[2, 0]]}\n"
    assert done(run, "tensors", "rows", "ids", "--", "-1")[0] == f"{ROWS[[1]]}\n"
    assert done(run, "tensors", "keys", "ids", "--output", "found.npy")[0] == ""
    assert np.load("found.npy").tolist() == KEYS.tolist()
    assert done(run, "tensors", "rows", "ids", "--keys", "found.npy", "--output", "out.npy")[0] == ""
    assert np.load("out.npy").tolist() == ROWS.tolist()
    done(run, "call", "ids", "--op", "gather", "--keys", "found.npy", "--output", "out.npy")
    assert np.load("out.npy").tolist() == ROWS.tolist()
    assert done(run, "tensors", "rows", "plain", "2", "0")[0] == f"{ROWS[[2, 0]]}\n"


def test_keys_may_be_strings_and_in_a_safetensors_file(run: Run) -> None:
    np.save("names.npy", np.array(["anna", "jürgen", "7"]))
    done(run, "tensors", "put", "ids", "rows.npy", "--keys", "names.npy")
    assert done(run, "tensors", "keys", "ids")[0] == "anna\njürgen\n7\n"
    assert done(run, "tensors", "rows", "ids", "7", "jürgen")[0] == f"{ROWS[[2, 1]]}\n"
    save_file({"data": ROWS, "keys": KEYS}, "table.safetensors")
    done(run, "tensors", "put", "ids", "table.safetensors")
    assert done(run, "tensors", "rows", "ids", "7")[0] == f"{ROWS[[0]]}\n"


def test_what_comes_for_a_key_that_the_table_lacks(run: Run) -> None:
    told = "gathernd: 1 key is not in the table\n"
    asked = ("tensors", "rows", "ids", "7", "5", "--missing")
    assert done(run, *asked, "fill", "--fill-value", "9") == ("[[0. 1.]\n [9. 9.]]\n", told)
    for row in ("2", '{"key": 3}'):
        assert done(run, *asked, "row", "--missing-row", row)[0] == f"{ROWS[[0, 2]]}\n"
    np.save("wanted.npy", np.array([5, 7]))
    by_key = ("lookup", "ids=wanted.npy", "--by-key", "--missing", "fill", "--output", "out.npy")
    assert done(run, *by_key) == ("", told)
    assert np.load("out.npy").tolist() == [[0, 0], ROWS[0].tolist()]


def test_rows_are_upserted_and_removed(run: Run, service: Client) -> None:
    np.save("new.npy", np.array([7, 9]))
    np.save("two.npy", ROWS[:2])
    printed, said = done(run, "tensors", "upsert", "ids", "new.npy", "two.npy", "--reduction", "add")
    assert (printed, said) == (f"{service.metadata('ids').etag}\n", "rows: 4, inserted: 1\n")
    assert done(run, "tensors", "rows", "ids", "7", "9")[0] == "[[0. 2.]\n [2. 3.]]\n"
    assert done(run, "tensors", "remove", "ids", "9", "8")[1] == "rows: 3, removed: 1, missing: 1\n"
    assert done(run, "tensors", "remove", "ids", "--keys", "new.npy")[1] == "rows: 2, removed: 1, missing: 1\n"


@for_each(
    ("arguments", "code", "text"),
    [
        ("tensors rows ids", 2, "give keys"),
        ("tensors rows ids 7 --keys keys.npy", 2, "give keys"),
        ("tensors rows ids 7 5", 1, "key_not_found"),
        ("tensors rows ids seven", 1, "int64"),
        ("tensors rows ids 7 --missing row --missing-row {", 2, "--missing-row"),
        ("tensors rows plain 7", 1, "index_out_of_bounds"),
        ("tensors rows plain seven", 1, "positions"),
        ("tensors rows plain 7 --missing fill", 1, "no_keys"),
        ("tensors keys plain", 1, "no_keys"),
        ("tensors remove ids", 2, ""),
        ("tensors put ids https://example.com/x --server --columns a", 1, "cannot read Parquet"),
        ("tensors put ids rows.npy --columns a", 1, "columns of a Parquet or Arrow file"),
        ("call ids", 2, ""),
        ("lookup ids=keys.npy --missing fill", 2, ""),
    ],
)
def test_what_fails_says_why(run: Run, arguments: str, code: int, text: str) -> None:
    ended = run(*arguments.split())
    assert (ended.exit_code, text in ended.output) == (code, True), ended.output
