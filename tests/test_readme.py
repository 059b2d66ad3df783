"""The README does what it says: its requests are sent and answered as printed, its tables are those of the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.operators.dialects import Dialect
from app.operators.registry import OPERATORS
from app.settings import Settings
from app.tensors.dtypes import DTYPES, INTEGERS
from tests.commands import command_names
from tests.http.server import ROOT, serving

FILE = ROOT / "README.md"
TEXT = FILE.read_text() if FILE.is_file() else ""
pytestmark = pytest.mark.skipif(not TEXT, reason="there is no README.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def requests() -> Iterator[tuple[str, Any]]:
    """Each curl with the answer that stands directly under it."""
    blocks = list(_BLOCK.finditer(TEXT))
    for place, block in enumerate(blocks):
        if block[1] == "bash" and "curl" in block[2]:
            after = blocks[place + 1] if place + 1 < len(blocks) else None
            if after is None or after[1] != "json" or TEXT[block.end() : after.start()].strip():
                yield block[2], None
            else:
                yield block[2], json.loads(after[2])


def rows(header: str) -> list[list[str]]:
    """The cells of the table whose header line starts with `header`."""
    lines = TEXT[TEXT.index(header) :].splitlines()[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


@pytest.fixture(scope="module")
def port(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(warmed, tmp_path_factory.mktemp("readme")) as server:
        yield server.port


def test_there_are_requests() -> None:
    assert len(list(requests())) >= 5


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs the Debian package curl")
def test_every_request_is_answered_as_printed(port: int, tmp_path: Path) -> None:
    for command, printed in requests():
        assert printed is not None, f"no answer stands directly under\n{command}"
        assert "127.0.0.1:8080" in command, command
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("127.0.0.1:8080", f"127.0.0.1:{port}")],
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        answered = json.loads(done.stdout)
        assert answered == _with_changing_members(printed, answered), command


def _with_changing_members(printed: Any, answered: Any) -> Any:
    """`printed`, where "…" stands for what changes from run to run."""
    if printed == "…":
        return answered
    if isinstance(printed, dict) and isinstance(answered, dict):
        return {name: _with_changing_members(value, answered.get(name)) for name, value in printed.items()}
    if isinstance(printed, list) and isinstance(answered, list) and len(printed) == len(answered):
        return [_with_changing_members(one, other) for one, other in zip(printed, answered, strict=True)]
    return printed


def test_the_settings_are_the_settings() -> None:
    table = {row[0].strip("`"): row for row in rows("| variable | flag |")}
    assert set(table) == {f"GATHERND_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        _, flag, default, described = table[f"GATHERND_{name.upper()}"]
        assert flag == f"`--{name.replace('_', '-')}`"
        assert described == field.description
        if field.default_factory is None and field.default not in (None, ()):
            assert _same(default.strip("`"), field.default), (name, default)
        else:
            assert not default or "default" in default, (name, default)


def _same(text: str, value: Any) -> bool:
    """Whether `text` is how a person would write this default."""
    if text == str(value):
        return True
    found = re.fullmatch(r"([0-9]+)(KiB|MiB|GiB)", text)
    return bool(found) and int(found[1]) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[found[2]] == value  # type: ignore[index]


_COMPLEX = frozenset(name for name, row in DTYPES.items() if row.kind == "complex")
_TYPES: Mapping[str, frozenset[str]] = {
    "all 16 types": frozenset(DTYPES),
    "without bfloat16": frozenset(DTYPES) - {"bfloat16"},
    "without complex types": frozenset(DTYPES) - _COMPLEX,
    "every integer type": frozenset(INTEGERS),
}


def test_the_dialects_are_the_dialects() -> None:
    table = {}
    for route, dialect, operator, data, indices, negative, parameter in rows("| route | dialect |"):
        table[route.strip("`/"), dialect.split("`")[1]] = (operator, data, indices, negative, parameter)
        assert ("(default)" in dialect) == (dialect.split("`")[1] == "onnx-13")
    assert set(table) == {(operator, name) for operator, row in OPERATORS.items() for name in row.dialects}
    for (operator, name), (version, data, indices, negative, parameter) in table.items():
        row: Dialect = OPERATORS[operator].dialects[name]
        title = {"gathernd": "GatherND", "gather": "Gather", "gather_elements": "GatherElements"}[operator]
        assert version == f"{title}-{name.split('-')[1]}"
        assert _types(data) == row.data_dtypes
        assert _types(indices) == row.index_dtypes
        assert negative == ("wrap" if row.wrap else "an error")
        expected = "`axis`" if operator != "gathernd" else "`batch_dims`" if row.has_batch_dims else "none"
        assert parameter == expected


def _types(text: str) -> frozenset[str]:
    return _TYPES.get(text) or frozenset(text.split(", "))


def test_every_make_target_and_command_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z]+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    commands = command_names()
    for command in re.findall(r"(?:^|`)gathernd ([a-z]+)", TEXT, re.MULTILINE):
        assert command in commands, f"gathernd {command}"


def test_every_setting_that_is_named_exists() -> None:
    known = {f"GATHERND_{name.upper()}" for name in Settings.model_fields}
    known |= {"GATHERND_SOAK", "GATHERND_URL"}  # of the tests, and of the client
    for name in re.findall(r"GATHERND_[A-Z_]+[A-Z]", TEXT):
        assert name in known, name
