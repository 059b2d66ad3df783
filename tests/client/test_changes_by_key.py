"""Upserts and removals of rows by key through the client and at the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gathernd import Feature, RowsChanged, errors
from gathernd_cli.command_line import app
from tests.http.server import Server

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2) + 1
KEYS: dict[str, Any] = {
    "int64": np.array([7, -1, 3]),
    "uint64": np.array([7, 1, 2**63], np.uint64),
    "string": np.array(["a", "bé", ""], object),
}
every_type = pytest.mark.parametrize("dtype", KEYS)


@pytest.fixture
def table(service: Any) -> Iterator[str]:
    yield "changed"
    if "changed" in {info.name for info in service.tensors()}:
        service.delete("changed")


@every_type
def test_rows_are_upserted_and_removed(service: Any, table: str, dtype: str) -> None:
    assert service.put(table, ROWS, keys=KEYS[dtype], capacity=8).capacity == 8
    new = np.array([9] if dtype != "string" else ["new"], KEYS[dtype].dtype)
    keys = np.concatenate([KEYS[dtype][:1], new])
    done = service.upsert(table, keys, [[1, 1], [2, 2]], "add")
    assert isinstance(done, RowsChanged)
    assert (done.rows, done.inserted, done.removed, done.missing) == (4, 1, 0, 0)
    assert service.gather(table, keys=keys).tolist() == [[2, 3], [2, 2]]
    again = service.upsert(table, keys, [[1, 1], [2, 2]], "add", idempotency_key=done.idempotency_key)
    assert (again.etag, again.rows, again.inserted) == (done.etag, 4, 1)
    done = service.remove(table, keys, if_match=done.etag)
    assert (done.rows, done.removed, done.missing) == (2, 2, 0)
    assert service.remove(table, keys).missing == 2
    assert sorted(service.get(table).tolist()) == ROWS[1:].tolist()


@every_type
def test_a_list_of_keys_takes_the_type_of_the_tables_keys(service: Any, table: str, dtype: str) -> None:
    service.put(table, ROWS, keys=KEYS[dtype])
    keys = KEYS[dtype][:2].tolist()
    np.testing.assert_array_equal(service.gather(table, keys=keys), ROWS[:2])
    found = service.lookup([Feature(table, keys=keys), Feature(table, [0, 1])])
    np.testing.assert_array_equal(found, np.concatenate([ROWS[:2], ROWS[:2]], axis=1))
    assert service.gather(table, keys=[]).shape == (0, 2)
    assert service.upsert(table, keys, ROWS[1:]).inserted == 0
    assert service.remove(table, keys).removed == 2
    for wrong in ([-7], [True], ["7"] if dtype != "string" else [7]):
        if dtype != "int64" or wrong != [-7]:
            with pytest.raises((errors.UnsupportedDtype, TypeError)):
                service.gather(table, keys=wrong)


def test_strings_of_several_shapes(service: Any, table: str) -> None:
    service.put(table, ROWS, keys=KEYS["string"])
    keys = KEYS["string"]
    np.testing.assert_array_equal(service.gather(table, keys=keys.reshape(3, 1)), ROWS.reshape(3, 1, 2))
    bags = {"offsets": [0, 2], "pooling": "sum"}
    found = service.lookup([{"tensor": table, "keys": keys, **bags}, {"tensor": table, "indices": [0, 1, 2], **bags}])
    np.testing.assert_array_equal(found[:, :2], found[:, 2:])


def test_the_command_line(server: Server, service: Any, table: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GATHERND_URL", server.url)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Any:
        ended = CliRunner().invoke(app, arguments)
        assert ended.exit_code == 0, ended.output
        return ended

    np.save("rows.npy", ROWS)
    np.save("keys.npy", KEYS["int64"])
    np.save("new.npy", np.array([7, 9]))
    np.save("two.npy", ROWS[:2])
    run("tensors", "put", table, "rows.npy", "--keys", "keys.npy", "--capacity", "9")
    assert "capacity\t9 rows" in run("tensors", "show", table).output
    ended = run("tensors", "upsert", table, "new.npy", "two.npy", "--reduction", "add")
    assert ended.stdout == f"{service.metadata(table).etag}\n"
    assert ended.stderr == "rows: 4, inserted: 1\n"
    run("call", table, "--op", "gather", "--keys", "new.npy", "--output", "out.npy")
    assert np.load("out.npy").tolist() == [[2, 4], [3, 4]]
    ended = run("tensors", "remove", table, "9", "8")
    assert ended.stderr == "rows: 3, removed: 1, missing: 1\n"
    assert run("tensors", "remove", table, "--keys", "new.npy").stderr == "rows: 2, removed: 1, missing: 1\n"
    ended = run("lookup", f"{table}=keys.npy", "--by-key", "--missing", "fill", "--output", "out.npy")
    assert np.load("out.npy").tolist() == [[0, 0], *ROWS[1:].tolist()]
    assert ended.stderr == "gathernd: 1 key is not in the table\n"
    for wrong in (["call", table], ["tensors", "remove", table], ["lookup", f"{table}=keys.npy", "--missing", "fill"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
