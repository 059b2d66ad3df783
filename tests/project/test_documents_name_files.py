"""What README.md, CONTRIBUTING.md, the threat model and docs/ name is there: files, functions, commands, settings."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

from app.cluster.reconciler.metrics import SERIES as RECONCILER_SERIES
from app.settings import SETTING_NAMES
from app.telemetry.metric_definitions import COUNTERS, GAUGES, REQUEST_SECONDS
from tests.commands import command_names
from tests.for_each import for_each
from tests.markdown_blocks import blocks
from tests.parsed import parsed

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "deploy/threat-model.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
_PATH = re.compile(
    r"`((?:app|tests|clients|benchmarks|deploy|docs|openapi|requirements)/[\w./-]*|[\w-]+\.(?:md|lock|ya?ml))"
    r"(?:(?:` `|::)([\w.]+))?`"
)
_TARGET = re.compile(r"^make ([a-z-]+)|`make ([a-z-]+)[` ]", re.MULTILINE)
_COMMAND = re.compile(r"`gathernd ([a-z]+)")
_COMMAND_IN_BASH = re.compile(r"(?:^|\$\()gathernd ([a-z]+)", re.MULTILINE)
_SETTING = re.compile(r"GATHERND_[A-Z0-9_]+[A-Z]")
_METRIC = re.compile(r"`(gathernd_[a-z_]+)")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
OTHER_VARIABLES = {"GATHERND_SOAK", "GATHERND_URL", "GATHERND_API_KEY", "GATHERND_CA"}
"""Of the tests, and of the client."""


@for_each("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there_and_has_what_it_says(document: str) -> None:
    for path, name in _PATH.findall((ROOT / document).read_text()):
        assert (ROOT / path).exists(), path
        if name:
            tree = parsed((ROOT / path).read_text())
            made = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            }
            assert set(name.split(".")) <= made, (path, name)


@for_each("document", DOCUMENTS)
def test_every_target_command_setting_metric_and_link_of_a_document_is_there(document: str) -> None:
    text = (ROOT / document).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in filter(None, itertools.chain(*_TARGET.findall(text))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    in_bash = [name for block in blocks(ROOT / document) for name in _COMMAND_IN_BASH.findall(block.code)]
    assert {*_COMMAND.findall(text), *in_bash} <= command_names()
    assert set(_SETTING.findall(text)) <= {*SETTING_NAMES, *OTHER_VARIABLES}
    metrics = {f"{name}_total" for name in COUNTERS} | set(GAUGES) | {REQUEST_SECONDS[0]} | RECONCILER_SERIES
    assert set(_METRIC.findall(text)) <= metrics
    for target in _LINK.findall(text):
        assert ((ROOT / document).parent / target).exists(), target
