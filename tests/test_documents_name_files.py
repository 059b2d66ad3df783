"""What CONTRIBUTING.md and docs/ say of files and functions is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md")
_PATH = re.compile(
    r"`((?:app|tests|clients|benchmarks|deploy|docs|openapi)/[\w./]*|README\.md|CHANGELOG\.md)`(?: `([\w.]+)`)?"
)
_TARGET = re.compile(r"`make ([a-z-]+)")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there_and_has_what_it_says(document: str) -> None:
    named = _PATH.findall((ROOT / document).read_text())
    assert named or document.endswith("glossary.md")
    for path, name in named:
        assert (ROOT / path).exists(), path
        if name:
            tree = ast.parse((ROOT / path).read_text())
            made = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            }
            assert set(name.split(".")) <= made, (path, name)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_names_is_there(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in _TARGET.findall((ROOT / document).read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_glossary_has_thirty_entries_at_most_in_order() -> None:
    words = re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)[1:]
    words = [word for word in words if not set(word) <= {"-"}]
    assert 0 < len(words) <= 30
    assert words == sorted(words)
