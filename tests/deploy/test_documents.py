"""What operators read names tests, files, settings and commands that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from app.settings import SETTING_NAMES
from tests.commands import command_names
from tests.http.server import ROOT
from tests.parsed import parsed

THREATS = ROOT / "deploy/threat-model.md"
DOCUMENTS = sorted((ROOT / "deploy").rglob("*.md"))
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(path: Path) -> set[str]:
    tree = parsed(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_threat_model_names_only_tests_that_there_are() -> None:
    named = _TEST.findall(THREATS.read_text())
    assert len(named) > 30
    missing = [(file, name) for file, name in named if not (ROOT / file).exists() or name not in functions(ROOT / file)]
    assert missing == []


def test_every_threat_names_what_shows_that_something_holds_against_it() -> None:
    rows = [line for line in THREATS.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        threat, holds, shown = (cell.strip() for cell in row.strip("|").split("|"))
        assert threat
        assert holds
        assert _TEST.search(shown), threat


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_names_only_what_there_is(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"GATHERND_[A-Z_]+[A-Z]", text):
        assert name in SETTING_NAMES, name
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    commands = command_names()
    for command in re.findall(r"`gathernd ([a-z]+)", text):
        assert command in commands, command
    for name in re.findall(r"(?<![\w./])deploy/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / name).exists(), name
    # Code of the document is shown relative to the document's folder.
    for name in re.findall(r"`([\w-]+(?:/[\w.-]+)*\.(?:ya?ml|md|json|service|conf|py))`", text):
        assert (path.parent / name).exists() or (ROOT / name).exists() or name == "api-keys.txt", name
