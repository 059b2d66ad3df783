"""The command that compiles ahead, and the second process that compiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import warmup
from app.cli import warm_command


def test_a_parent_that_has_ended_is_told_nothing_and_nothing_fails() -> None:
    reading, writing = os.pipe()
    warmup._tell_parent(writing)
    assert os.read(reading, 10) == b"d"
    os.close(reading)
    warmup._tell_parent(writing)
    os.close(writing)


@pytest.mark.parametrize("place", ["file", "file/below", "read-only"])
def test_the_command_fails_where_the_folder_keeps_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Numba turns to a folder of its own where it cannot write into the one that is named.
    monkeypatch.setattr(warm_command, "warm", lambda folder, progress: None)
    (tmp_path / "file").touch()
    folder = tmp_path / place
    done = CliRunner().invoke(warm_command.app, ["--cache-dir", str(folder)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"gathernd: {folder}: ")
    assert done.stderr.count("\n") == 1
