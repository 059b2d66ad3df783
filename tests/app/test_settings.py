from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from app.settings import Settings
from tests.http.server import run_program

PATHS = [
    name for name, field in Settings.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_given_is_not_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would be the working directory."""
    monkeypatch.setenv(f"GATHERND_{name.upper()}", "")
    with pytest.raises(ValidationError, match="is empty: give a path, or leave it out"):
        Settings()


def test_a_setting_that_is_refused_is_named_with_the_reason_alone() -> None:
    command = [sys.executable, "-m", "app.cli", "serve", "--store-dir", ""]
    done = run_program(command)
    assert (done.returncode, done.stderr) == (
        2,
        "gathernd: --store-dir (GATHERND_STORE_DIR): is empty: give a path, or leave it out\n",
    )
