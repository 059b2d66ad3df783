"""What may not be committed: where this or that machine keeps things, and which index or registry it fetches from."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Written in pieces, so that this file does not hold what it looks for.
HOSTS = [
    "pypi" + r"\.org",
    "pythonhosted" + r"\.org",
    "npmjs" + r"\.(org|com)",
    "yarnpkg" + r"\.com",
    "deb" + r"\.debian\.org",
    "security" + r"\.debian\.org",
    "repo1?" + r"\.maven\.(org|apache\.org)",
    "docker" + r"\.io",
    "ghcr" + r"\.io",
    "nvcr" + r"\.io",
    "anaconda" + r"\.org",
    "proxy" + r"\.golang\.org",
    "(extra-)?index" + r"-url[ =]+\S*://",
]
FOLDERS = [rf"(?<![\w.~-])/{name}/" for name in ("root", "work", "farm")] + [r"(?<![\w.~-])/(home|Users)/\w+/"]
FORBIDDEN = re.compile("|".join(HOSTS + FOLDERS))


def tracked() -> list[Path]:
    """The files that git tracks; in a checkout without git, every file outside what tools leave behind."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        left = {".venv", ".venv-clients", "build", "dist", "node_modules", "__pycache__", ".git", "shared"}
        paths = [path for path in ROOT.rglob("*") if not left & set(path.relative_to(ROOT).parts)]
        paths = [path for path in paths if not re.search(r"/\.(hypothesis|\w+_cache)/|\.egg-info/", str(path))]
    return [path for path in paths if path.is_file()]


def test_no_tracked_file_names_a_registry_or_a_folder_of_one_machine() -> None:
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content:
            continue
        text = content.decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN.finditer(text)]
    assert found == []
