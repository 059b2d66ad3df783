"""The code blocks of a Markdown document, and what its text says of each: what it prints, or why it is not run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNNABLE = ("bash", "python")
COMPILED = ("typescript", "java", "go")
"""Languages whose blocks tests/clients compiles and runs."""
ANSWERS = ("json", "text")
"""Languages of what a block prints: JSON is compared as JSON, text line by line."""
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A code block. `output` is the block directly under it, where that is what it prints.

    `reason` is that of the marker `<!-- not run: reason -->` in the line above, None where there is none.
    """

    language: str
    code: str
    line: int
    reason: str | None
    output: Block | None


def documents() -> list[Path]:
    """The documents whose blocks run."""
    own = [ROOT / "README.md", ROOT / "clients/python/README.md"]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(document: Path) -> Iterator[Block]:
    """The blocks of a document in order; one that is the output of another is in that."""
    text = document.read_text()
    found = list(_FENCE.finditer(text))
    outputs: set[int] = set()
    for place, match in enumerate(found):
        if place in outputs:
            continue
        output = None
        if match["language"] in (*RUNNABLE, *COMPILED) and place + 1 < len(found):
            after = found[place + 1]
            if after["language"] in ANSWERS and not text[match.end() : after.start()].strip():
                outputs.add(place + 1)
                output = _block(text, after, None)
        yield _block(text, match, output)


def _block(text: str, match: re.Match[str], output: Block | None) -> Block:
    line = text.count("\n", 0, match.start("code")) + 1
    return Block(match["language"], match["code"], line, match["reason"], output)


def check_output(output: Block | None, printed: str) -> None:
    """A block printed what its document says; "…" stands for what changes from run to run."""
    if output is None:
        assert printed == "", "this is printed and the document does not show it"
    elif output.language == "json":
        shown, answered = json.loads(output.code), json.loads(printed)
        assert answered == _with_changing_members(shown, answered)
    else:
        pattern = re.escape(output.code.rstrip("\n")).replace("…", ".*")
        assert re.fullmatch(pattern, printed.rstrip("\n")), f"printed:\n{printed}\nshown:\n{output.code}"


def _with_changing_members(shown: Any, answered: Any) -> Any:
    """`shown`, where "…" stands for whatever was answered there."""
    if shown == "…":
        return answered
    if isinstance(shown, dict) and isinstance(answered, dict):
        return {name: _with_changing_members(value, answered.get(name)) for name, value in shown.items()}
    if isinstance(shown, list) and isinstance(answered, list) and len(shown) == len(answered):
        return [_with_changing_members(one, other) for one, other in zip(shown, answered, strict=True)]
    return shown


def table(document: Path, header: str) -> list[list[str]]:
    """The cells of the table of `document` whose header line starts with `header`, row by row."""
    text = document.read_text()
    rows = []
    for line in text[text.index(header) :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
