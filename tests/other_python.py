"""Print the newest other Python that pyproject.toml has a classifier for, or nothing: `python -m tests.other_python`.

Needs only the standard library. pyenv has commands `python3.N` that refuse to run, so each is tried.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_USABLE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def _output(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _interpreters(version: str) -> Iterator[str]:
    if command := shutil.which(f"python{version}"):
        yield command
    if shutil.which("pyenv") and (folder := _output("pyenv", "prefix", version)):
        yield f"{folder}/bin/python"


@cache
def other_python() -> str | None:
    """The path of the interpreter, None where there is none."""
    classifiers = re.findall(r":: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    own = "{}.{}".format(*sys.version_info)
    for version in sorted({*classifiers} - {own}, key=lambda version: int(version[2:]), reverse=True):
        for interpreter in _interpreters(version):
            if _output(interpreter, "-c", _USABLE) == version:
                return interpreter
    return None


if __name__ == "__main__":
    sys.stdout.write(other_python() or "")
