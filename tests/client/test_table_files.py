"""Parquet and Arrow files as uploads: chosen columns become rows, one becomes their keys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gathernd import Client
from gathernd_cli.command_line import app
from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http.server import Server

pa = pytest.importorskip("pyarrow", reason="needs the package pyarrow, of the client's extra parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the package pyarrow, of the client's extra parquet")

COUNT = 150_000
"""More rows than are read at a time."""
IDS = np.random.default_rng(3).permutation(COUNT) * 3 - 1000
A, B = (np.random.default_rng(seed).standard_normal(COUNT, np.float32) for seed in (1, 2))
NAMES = [f"nämé {number}" for number in IDS.tolist()]


def write_parquet(path: Path, table: Any) -> None:
    """Row groups of 40,000 rows, whose ends are not those of what is read at a time."""
    parquet.write_table(table, path, row_group_size=40_000)


def write_arrow(path: Path, table: Any) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=70_000)


def write_feather(path: Path, table: Any) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_table(table, max_chunksize=70_000)


def write_stream(path: Path, table: Any) -> None:
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table)


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "parquet": write_parquet, "arrow": write_arrow, "feather": write_feather, "stream": write_stream,
}  # fmt: skip


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Where a file goes."""
    return tmp_path / "users"


@pytest.fixture
def table(service: Any) -> Iterator[str]:
    """The name of a table that is removed afterwards."""
    yield "columns"
    for info in list(service.tensors()):
        service.delete(info.name)


@pytest.mark.parametrize("form", slow_but_for(("parquet", "stream"), WRITERS))
def test_columns_become_rows_and_one_their_keys(service: Any, table: str, users: Path, form: str) -> None:
    WRITERS[form](users, pa.table({"id": IDS, "name": NAMES, "a": A, "b": B}))
    info = service.put(table, users, keys="id", columns=["b", "a"])
    assert (info.shape, info.dtype, info.keys.dtype) == ((COUNT, 2), "float32", "int64")
    np.testing.assert_array_equal(service.get_keys(table), IDS)
    np.testing.assert_array_equal(service.get(table), np.stack([B, A], 1))
    info = service.put(table, str(users), keys="name", columns="a")
    assert (info.shape, info.keys.dtype) == ((COUNT, 1), "string")
    assert service.get_keys(table).tolist() == NAMES
    np.testing.assert_array_equal(service.gather(table, keys=NAMES[:5])[:, 0], A[:5])


@for_each("form", ["parquet", "stream"])
@for_each("lists", [pa.list_(pa.float64(), 7), pa.list_(pa.float64()), pa.large_list(pa.float64())])
def test_lists_of_one_length_become_rows(service: Any, table: str, users: Path, form: str, lists: Any) -> None:
    rows = np.random.default_rng(4).standard_normal((3000, 7))
    WRITERS[form](users, pa.table({"id": np.arange(3000), "v": pa.array(list(rows), lists)}))
    info = service.put(table, users, keys="id")
    assert (info.shape, info.dtype) == ((3000, 7), "float64")
    np.testing.assert_array_equal(service.get(table), rows)


@for_each("form", ["parquet", "stream"])
@for_each(
    ("keys", "dtype"),
    [
        (pa.array([2**63, 7, 0], pa.uint64()), "uint64"),
        (pa.array([-7, 7, 0], pa.int16()), "int64"),
        (pa.array([4_000_000_000, 7, 0], pa.uint32()), "int64"),
        (pa.array(["", "ü", "z"]).dictionary_encode(), "string"),
        (pa.array(["", "ü", "z"], pa.large_string()), "string"),
        (pa.array(["", "ü", "z"], pa.string_view()), "string"),
        (pa.array([], pa.string()), "string"),
        (pa.array([], pa.int64()), "int64"),
    ],
)
def test_keys_of_every_type(service: Any, table: str, users: Path, form: str, keys: Any, dtype: str) -> None:
    WRITERS[form](users, pa.table({"k": keys, "on": pa.array([True, False, True][: len(keys)], pa.bool_())}))
    info = service.put(table, users, keys="k")
    assert (info.dtype, info.shape, info.keys.dtype) == ("bool", (len(keys), 1), dtype)
    assert service.get_keys(table).tolist() == keys.to_pylist()
    assert service.get(table)[:, 0].tolist() == [True, False, True][: len(keys)]


def test_a_file_without_keys_and_keys_from_elsewhere(service: Any, table: str, users: Path) -> None:
    write_parquet(users, pa.table({"a": A, "b": B}))
    assert service.put(table, users).keys is None
    np.testing.assert_array_equal(service.get(table), np.stack([A, B], 1))
    service.put(table, users, keys=IDS)
    np.testing.assert_array_equal(service.get_keys(table), IDS)


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_a_file_may_be_open(service: Any, table: str, users: Path, form: str) -> None:
    WRITERS[form](users, pa.table({"id": IDS, "name": NAMES, "a": A, "b": B}))
    with users.open("rb") as file, pa.OSFile(str(users)) as native:
        for source in (file, native):
            service.put(table, source, keys="name", columns=["b", "a"])
            assert not source.closed
            np.testing.assert_array_equal(service.get(table), np.stack([B, A], 1))
            np.testing.assert_array_equal(service.gather(table, keys=NAMES[-5:])[:, 1], A[-5:])


def test_an_open_file_of_another_kind_is_refused(service: Any, users: Path) -> None:
    np.save(users, A)
    with users.with_suffix(".npy").open("rb") as file, pytest.raises(ValueError, match="give the path of any other"):
        service.put("columns", file)


def with_null(values: Any, row: int) -> Any:
    return pa.array([None if number == row else value for number, value in enumerate(values.tolist())])


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "a null key": ({"id": with_null(IDS, 70_001), "a": A}, {"keys": "id"}, ValueError, "'id' is null in row 70001"),
    "a null value": ({"id": IDS, "a": with_null(A, 99_999)}, {"keys": "id"}, ValueError, "'a' is null in row 99999"),
    "a null in a list": (
        {"id": [1, 2], "v": [[1.0, 2.0], [1.0, None]]}, {"keys": "id"}, ValueError, "'v' is null in row 1"
    ),
    "a null list": ({"id": [1, 2], "v": [[1.0], None]}, {"keys": "id"}, ValueError, "'v' is null in row 1"),
    "lists of two lengths": (
        {"id": [1, 2, 3], "v": [[1.0], [2.0], [1.0, 3.0]]}, {"keys": "id"}, ValueError, "row 2 has 2 items"
    ),
    "lists of no length": ({"v": pa.array([], pa.list_(pa.int8()))}, {}, ValueError, "has no list"),
    "two types": ({"a": A[:2], "n": [1, 2]}, {}, TypeError, "'a' is float32 and 'n' is int64"),
    "a struct": ({"s": [{"x": 1}]}, {}, TypeError, "'s' is struct<x: int64>"),
    "lists of lists": ({"v": [[[1]]]}, {}, TypeError, "'v' is list<"),
    "texts as rows": ({"t": ["a"]}, {}, TypeError, "'t' is string"),
    "keys of floats": ({"id": [1.0], "a": [1]}, {"keys": "id"}, TypeError, "'id' is double; keys are"),
    "no such column": ({"a": [1]}, {"columns": ["b"]}, ValueError, "no column 'b'; its columns are a"),
    "no such key": ({"a": [1]}, {"keys": "id"}, ValueError, "no column 'id'"),
    "no rows": ({"id": [1]}, {"keys": "id"}, ValueError, "no column for the rows"),
    "a tensor": ({"a": [1]}, {"tensor": "a"}, ValueError, "columns= names"),
}  # fmt: skip


@for_each("fault", FAULTS)
def test_what_makes_no_table_is_said(service: Any, table: str, users: Path, fault: str) -> None:
    columns, options, kind, said = FAULTS[fault]
    write_parquet(users, pa.table(columns))
    with pytest.raises(kind, match=said) as caught:
        service.put(table, users, **options)
    assert str(users) in str(caught.value)
    assert list(service.tensors()) == []
    service.put(table, np.zeros(2))  # over a sound connection
    service.delete(table)


def test_a_file_that_was_cut_or_damaged_is_no_table(service: Any, table: str, users: Path) -> None:
    write_parquet(users, pa.table({"id": IDS, "a": A}))
    content = users.read_bytes()
    third = len(content) // 3
    for damaged in (content[:4], content[:-100], content[:third] + bytes(third) + content[2 * third :]):
        users.write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot be read"):
            service.put(table, users, keys="id")
    assert list(service.tensors()) == []


def test_without_pyarrow_the_extra_is_named(service: Any, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(users, pa.table({"a": A}))
    monkeypatch.setitem(sys.modules, "gathernd._table_files", None)
    with pytest.raises(ModuleNotFoundError, match=r"clients/python\[parquet\]"):
        service.put("columns", users)


def test_columns_belong_to_a_file_that_has_them(service: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", A)
    for source in (A, tmp_path / "rows.npy"):
        with pytest.raises(ValueError, match="columns of a Parquet or Arrow file"):
            service.put("columns", source, columns=["a"])


@pytest.mark.slow
def test_a_large_file_takes_little_memory(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    rows = 1_000_000
    schema = pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 64)})
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for start in range(0, rows, 100_000):
            values = np.random.default_rng(start).standard_normal(64 * 100_000, np.float32)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 64)
            file.write_table(pa.table({"id": np.arange(start, start + 100_000), "v": lists}, schema))
    program = (
        "import json, resource, sys; import pyarrow.parquet; from gathernd import Client\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with Client(sys.argv[1]) as client: info = client.put('large', sys.argv[2], keys='id')\n"
        "print(json.dumps([info.bytes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10]))\n"
    )
    command = [sys.executable, "-c", program, server.url, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    size, grown = json.loads(done.stdout)
    assert size == rows * 256
    assert grown < size // 2
    with Client(server.url) as client:
        client.delete("large")


def test_the_command_uploads_a_file_or_url(server: Server, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATHERND_URL", server.url)
    write_parquet(users, pa.table({"id": IDS, "a": A, "b": B}))
    with Client(server.url) as client:
        for source in (str(users), f"file://{users}"):
            done = CliRunner().invoke(app, ["tensors", "put", "t", source, "--keys", "id", "--columns", "b,a"])
            assert done.exit_code == 0, done.output
            np.testing.assert_array_equal(client.gather("t", keys=IDS[:9]), np.stack([B, A], 1)[:9])
            client.delete("t")
        refused = CliRunner().invoke(app, ["tensors", "put", "t", str(users), "--keys", "c"])
        assert (refused.exit_code, "its columns are id, a, b" in refused.output) == (1, True)
