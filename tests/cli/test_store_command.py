"""`gathernd store` beside a service that two workers serve, and on the folder of one that was stopped."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import store_command
from app.store import LocalStore
from app.tensors.shape_limits import Limits
from gathernd import Client
from tests.http.server import GATHERND, TWO_WORKERS, Server, run_program, serving
from tests.store.helpers import put


@pytest.fixture
def server(warmed: Path, tmp_path: Path) -> Iterator[Server]:
    with serving(warmed, tmp_path / "service", *TWO_WORKERS) as server:
        yield server


def store(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_program([GATHERND, "store", *map(str, arguments)])
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def fields(text: str) -> dict[str, str]:
    return dict(line.split("\t") for line in text.splitlines())


@pytest.mark.slow
def test_a_service_is_backed_up_while_it_is_used_and_its_copy_serves_the_same(
    server: Server, warmed: Path, tmp_path: Path
) -> None:
    folder, backup, copy = tmp_path / "service" / "store", tmp_path / "backup", tmp_path / "copy"
    stop = Event()
    acknowledged = {"counter": 0, "version": 1}

    def work() -> None:
        with Client(server.url) as client:
            while not stop.wait(0.05):
                client.scatter("counter", np.arange(1000)[:, None], np.ones((1000, 64)), reduction="add")
                acknowledged["counter"] += 1
                version = acknowledged["version"] + 1
                client.put("daily", np.full((1000, 8), version), keep=3)
                client.put_alias("live", f"daily@{version}")
                acknowledged["version"] = version

    with Client(server.url) as client:
        client.put("counter", np.zeros((1000, 64)))
        client.put("daily", np.full((1000, 8), 1), keep=3)
        client.put_alias("live", "daily@1")
        etag = client.metadata("counter").etag
    thread = Thread(target=work)
    thread.start()
    try:
        for _ in range(2):
            before = dict(acknowledged)
            made = fields(store("backup", backup, "--store-dir", folder).stdout)
            after = dict(acknowledged)
    finally:
        stop.set()
        thread.join()
    assert fields(store("restore", backup, "--store-dir", copy / "store").stdout)["versions"] == made["versions"]
    assert store("check", "--store-dir", copy / "store").stdout == ""
    with serving(warmed, copy) as restored, Client(restored.url) as client:
        (counted,) = np.unique(client.get("counter")).tolist()
        assert before["counter"] <= counted <= after["counter"] + 1
        live = int(client.alias("live").tensor.partition("@")[2])
        assert before["version"] <= live <= after["version"] + 1
        for version in client.metadata("daily").versions:
            assert np.unique(client.get(f"daily@{version}")).tolist() == [version]
        assert etag.split("-")[0] != client.metadata("counter").etag.split("-")[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a service that has stopped, with the tensor `items`."""
    made = LocalStore(tmp_path / "service" / "store", Limits())
    made.open()
    put(made, "items", np.arange(3000))
    made.close()
    return made.folder


def test_what_cannot_be_done_is_told_in_a_line(stopped: Path, tmp_path: Path) -> None:
    """The commands run in this process, which spares the start of one for each."""
    folder, backup = stopped, tmp_path / "backup"
    runner = CliRunner()
    made = runner.invoke(store_command.app, ["backup", str(backup), "--store-dir", str(folder)])
    assert made.exit_code == 0, made.stderr
    for arguments, text in (
        (("restore", backup, "--store-dir", folder), "has a store already"),
        (("backup", tmp_path / "service", "--store-dir", folder), "must not contain each other"),
        (("backup", backup, "--store-dir", tmp_path / "none"), "has no store"),
        (("restore", tmp_path / "none", "--store-dir", tmp_path / "new"), "is not a backup of gathernd"),
        (("check", "--store-dir", tmp_path / "none"), "has no store"),
    ):
        done = runner.invoke(store_command.app, list(map(str, arguments)))
        assert (done.exit_code, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("gathernd: ")
        assert text in line
    assert store("check", "--store-dir", backup).stdout == ""


def test_damage_is_a_line_with_tabs_in_a_pipe_and_a_table_on_a_terminal(stopped: Path, tmp_path: Path) -> None:
    (file,) = (stopped / "tensors").iterdir()
    with file.open("r+b") as content:
        content.seek(5000)
        content.write(b"damage")
    (stopped / "tensors" / "left").touch()
    done = store("check", "--store-dir", stopped, code=1)
    damage, note = (line.split("\t") for line in done.stdout.splitlines())
    assert damage[:3] == ["damage", "items@1", "block 0 (1 in all) does not match its checksum"]
    assert note[:2] == ["note", "tensors/left"]
    shown, code = on_terminal("store", "check", "--store-dir", str(stopped))
    assert code == 1
    assert shown.splitlines()[0].split() == ["level", "object", "problem", "what", "to", "do"]
    done = store("backup", tmp_path / "backup", "--store-dir", stopped, code=1)
    assert "items@1: block 0 does not match its checksum" in done.stderr
    assert "--skip-damaged" in done.stderr
    done = store("backup", tmp_path / "backup", "--store-dir", stopped, "--skip-damaged")
    assert fields(done.stdout)["versions"] == "0"
    assert "skipped items@1" in done.stderr


def on_terminal(*arguments: str) -> tuple[str, int]:
    """What a command prints on a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [GATHERND, *arguments],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    return b"".join(pieces).decode(), process.wait()
