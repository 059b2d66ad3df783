"""What may not be committed: where this or that machine keeps things, and which index or registry it fetches from."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if match := FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


def test_no_tracked_file_is_large() -> None:
    sizes = {path.relative_to(ROOT): path.stat().st_size for path in tracked()}
    assert len(sizes) > 20
    assert {str(path): size for path, size in sizes.items() if size > 2**20} == {}


@pytest.mark.parametrize(
    "line",
    [
        "https://" + "pypi" + ".org/simple",
        "FROM " + "ghcr" + ".io/some/image",
        "see /" + "root/.cache",
        '"/' + 'home/someone/x"',
        "--extra-index" + "-url https://example.com/simple",
    ],
)
def test_what_is_forbidden_is_seen(line: str) -> None:
    assert FORBIDDEN.search(line)


@pytest.mark.parametrize(
    "line", ["tests/framework/x.py", "GET /workers/ HTTP/1.1", "at /tensors/root/content", "a/work/x"]
)
def test_what_only_looks_alike_passes(line: str) -> None:
    assert not FORBIDDEN.search(line)
