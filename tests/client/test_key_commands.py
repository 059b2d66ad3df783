"""`gathernd tensors put --keys`, `keys` and `rows`: tables with keys at the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from gathernd import Client
from gathernd_cli.command_line import app
from tests.http.server import Server

ROWS = np.arange(6.0).reshape(3, 2)
KEYS = np.array([7, -1, 3])
Run = Callable[..., Any]


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in a folder with npy files of rows and keys."""
    monkeypatch.setenv("GATHERND_URL", server.url)
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", ROWS)
    np.save("keys.npy", KEYS)
    yield lambda *arguments: CliRunner().invoke(app, arguments)
    with Client(server.url) as service:
        for info in list(service.tensors()):
            service.delete(info.name)


def done(run: Run, *arguments: str) -> str:
    """The output of a command that succeeds."""
    ended = run("tensors", *arguments)
    assert ended.exit_code == 0, ended.output
    text: str = ended.output
    return text


def test_a_table_is_uploaded_with_keys_and_gives_its_rows_by_them(run: Run) -> None:
    done(run, "put", "ids", "rows.npy", "--keys", "keys.npy")
    assert "keys\tint64" in done(run, "show", "ids")
    assert done(run, "keys", "ids") == "7\n-1\n3\n"
    assert done(run, "rows", "ids", "3", "7") == f"{ROWS[[2, 0]]}\n"
    assert done(run, "rows", "ids", "--", "-1") == f"{ROWS[[1]]}\n"
    assert done(run, "keys", "ids", "--output", "found.npy") == ""
    assert np.load("found.npy").tolist() == KEYS.tolist()
    assert done(run, "rows", "ids", "--keys", "found.npy", "--output", "out.npy") == ""
    assert np.load("out.npy").tolist() == ROWS.tolist()


def test_keys_may_be_strings_and_in_a_safetensors_file(run: Run) -> None:
    np.save("names.npy", np.array(["anna", "jürgen", "7"]))
    done(run, "put", "ids", "rows.npy", "--keys", "names.npy")
    assert done(run, "keys", "ids") == "anna\njürgen\n7\n"
    assert done(run, "rows", "ids", "7", "jürgen") == f"{ROWS[[2, 1]]}\n"
    save_file({"data": ROWS, "keys": KEYS}, "table.safetensors")
    done(run, "put", "ids", "table.safetensors")
    assert done(run, "rows", "ids", "7") == f"{ROWS[[0]]}\n"


def test_a_table_without_keys_gives_its_rows_by_position(run: Run) -> None:
    done(run, "put", "plain", "rows.npy")
    assert done(run, "rows", "plain", "2", "0") == f"{ROWS[[2, 0]]}\n"
    assert done(run, "rows", "plain", "--", "-1") == f"{ROWS[[2]]}\n"


def test_what_comes_for_a_key_that_the_table_lacks(run: Run) -> None:
    done(run, "put", "ids", "rows.npy", "--keys", "keys.npy")
    ended = run("tensors", "rows", "ids", "7", "5")
    assert ended.exit_code == 1
    assert "key_not_found" in ended.output
    filled = run("tensors", "rows", "ids", "7", "5", "--missing", "fill", "--fill-value", "9")
    assert (filled.stdout, filled.stderr) == ("[[0. 1.]\n [9. 9.]]\n", "gathernd: 1 key is not in the table\n")
    for row in ("2", '{"key": 3}'):
        found = run("tensors", "rows", "ids", "7", "5", "--missing", "row", "--missing-row", row)
        assert found.stdout == f"{ROWS[[0, 2]]}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["rows", "ids"], 2, "give keys"),
        (["rows", "ids", "7", "--keys", "keys.npy"], 2, "give keys"),
        (["rows", "ids", "seven"], 1, "int64"),
        (["rows", "ids", "7", "--missing", "row", "--missing-row", "{"], 2, "--missing-row"),
        (["rows", "plain", "7"], 1, "index_out_of_bounds"),
        (["rows", "plain", "seven"], 1, "positions"),
        (["rows", "plain", "7", "--missing", "fill"], 1, "no_keys"),
        (["keys", "plain"], 1, "no_keys"),
        (["put", "ids", "https://example.com/x", "--server", "--columns", "a"], 1, "cannot read Parquet"),
        (["put", "ids", "rows.npy", "--columns", "a"], 1, "columns of a Parquet or Arrow file"),
    ],
)
def test_what_fails_says_why(run: Run, arguments: list[str], code: int, text: str) -> None:
    done(run, "put", "ids", "rows.npy", "--keys", "keys.npy")
    done(run, "put", "plain", "rows.npy")
    ended = run("tensors", *arguments)
    assert (ended.exit_code, text in ended.output) == (code, True), ended.output
