"""What operators read names tests, files, settings and commands that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.http.server import ROOT
from tests.parsed import parsed

THREATS = ROOT / "deploy/threat-model.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(path: Path) -> set[str]:
    tree = parsed(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_threat_model_names_only_tests_that_there_are() -> None:
    named = _TEST.findall(THREATS.read_text())
    assert len(named) > 30
    missing = [(file, name) for file, name in named if not (ROOT / file).exists() or name not in functions(ROOT / file)]
    assert missing == []
