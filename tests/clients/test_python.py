"""The client that openapi-python-client generates: no warnings, every operation, well typed, and at work.

Everything that the generated package needs (httpx, attrs) comes with the generator, from requirements/clients.lock.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import OPENAPI, PROGRAMS, got, run, tool
from tests.http.server import ROOT, Server

pytestmark = pytest.mark.slow
_PROGRAMS = ("round_trip.py", "resident.py")
# The generator's own part, the same in every client, hands `*args: object` to a typed `__exit__`.
_MYPY = "[mypy]\nstrict = true\n[mypy-generated.client]\ndisable_error_code = arg-type\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs beside the generated package."""
    made = tmp_path_factory.mktemp("python")
    generator = tool("bin/openapi-python-client")
    config = ROOT / "openapi" / "python-client.yaml"
    command: list[str | Path] = [
        generator,
        "generate",
        "--path",
        OPENAPI,
        "--config",
        config,
        "--meta",
        "none",
        "--fail-on-warning",
    ]
    said = run([*command, "--output-path", "generated"], made)
    assert said == "Generating generated\n"
    for program in _PROGRAMS:
        shutil.copy(PROGRAMS / program, made)
    return made


def test_it_and_a_program_that_uses_it_are_well_typed(folder: Path) -> None:
    (folder / "mypy.ini").write_text(_MYPY)
    environment: list[str | Path] = [
        "--python-executable",
        tool("bin/python"),
        "--cache-dir",
        ROOT / ".mypy_cache" / "clients",
    ]
    said = run([sys.executable, "-m", "mypy", *environment, "generated", *_PROGRAMS], folder)
    assert re.fullmatch(r"Success: no issues found in \d{3} source files\n", said)


def test_round_trip(folder: Path, server: Server, expected: dict[str, Any]) -> None:
    assert got(run([tool("bin/python"), "round_trip.py", server.url], folder)) == expected


def test_resident_tensors(folder: Path, server: Server) -> None:
    np.save(folder / "table.npy", np.arange(4, dtype=np.int16).reshape(2, 2))
    printed = run([tool("bin/python"), "resident.py", server.url, "table.npy"], folder)
    assert json.loads(printed) == {
        "raw": ["float32", [2, 2]],
        "npy": ["int16", [2, 2], 1],
        "an old version": "0000803f000000400000404000008040",
        "rows": "02000300",
        "unchanged": [304, True],
        "the same scatter twice": True,
        "an alias": "0000c07f000000400000404000008040",
    }
