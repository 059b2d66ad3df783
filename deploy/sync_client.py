"""Writes clients/python/gathernd/_sync, the blocking client, from the asynchronous one in _async: `make sync-client`.

Words of the source become their blocking form: `async` and `await` are removed, `AsyncClient` becomes `Client`.
SENTENCES are the sentences of docstrings that differ between the two clients.

    python -m deploy.sync_client            write it
    python -m deploy.sync_client --check    say whether it is current: exit code 1 if not
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "clients" / "python" / "gathernd"
SOURCE: Final = PACKAGE / "_async"
WRITTEN: Final = PACKAGE / "_sync"
WORDS: Final[Mapping[str, str]] = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "_async_waiting": "_sync_waiting",
    "_asyncio_transport": "_socket_transport",
    "AsyncioTransport": "SocketTransport",
}
"""Names whose blocking form is another word. Any other `AsyncName` becomes `Name`."""
SENTENCES: Final[Mapping[str, str]] = {
    "A client of the service at `url` for asyncio, within one event loop at a time.\n\n"
    "    A thread packs large arrays and files and reads large responses, so that the event loop is not blocked.\n": (
        "A client of the service at `url`. Any number of threads may use it at once.\n"
    ),
    '`client["items"]`: `await` its `[5:7]`, `[-1]`, `[[3, 8]]` and `[rows, columns]`: arrays, as from a NumPy': (
        '`client["items"]`: `[5:7]`, `[-1]`, `[[3, 8]]` and `[rows, columns]` are arrays, as from a NumPy'
    ),
    '`await client["items"][...]` is the whole tensor.': "numpy.asarray() of it is the whole tensor.",
}
"""Sentences in docstrings of the asynchronous client, and their form in the blocking one."""
_WORD: Final = re.compile(r"\b(?:async|await) |\b(?:__a\w+__|_?[Aa]sync\w+)\b")


def files() -> dict[str, str]:
    """The text of each file of the blocking client, by name. Raises ValueError if a sentence is not in the source."""
    sources = {path.name: path.read_text() for path in sorted(SOURCE.glob("*.py"))}
    for sentence in SENTENCES:
        if "".join(sources.values()).count(sentence) != 1:
            raise ValueError(f"the source does not say this once: {sentence}")
    return {name: _blocking(name, text) for name, text in sources.items()}


def _blocking(name: str, text: str) -> str:
    for sentence, other in SENTENCES.items():
        text = text.replace(sentence, other)
    text = _WORD.sub(lambda found: WORDS.get(found[0], _without_async(found[0])), text)
    head = f"# `make sync-client` writes this file from _async/{name}.\n"
    return _by_ruff("format", name, _by_ruff("check", name, head + text))


def _without_async(word: str) -> str:
    return "" if word[-1] == " " else word.removeprefix("Async")


def _by_ruff(command: str, name: str, text: str) -> str:
    """`text` with its imports in order (check) or formatted (format)."""
    options = ["--fix-only", "--select=I"] if command == "check" else []
    line = [sys.executable, "-m", "ruff", command, "-q", *options, f"--stdin-filename={WRITTEN / name}", "-"]
    return subprocess.run(line, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603  (our own linter)


def main() -> None:
    """Write the files, or check them."""
    found = files()
    if "--check" in sys.argv[1:]:
        raise SystemExit({path.name: path.read_text() for path in WRITTEN.glob("*.py")} != found)
    for path in WRITTEN.glob("*.py"):
        if path.name not in found:
            path.unlink()
    for name, text in found.items():
        (WRITTEN / name).write_text(text)


if __name__ == "__main__":
    main()
