"""The site that `make docs` builds: no dead link, and nothing loaded from another host."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.needs import ROOT, in_environment

# What a browser fetches by itself; a link that a reader may follow is another matter.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//[^\s\">]+"
    r"|<link(?![^>]*rel=\"?canonical)[^>]*\shref=\"?(?:https?:)?//[^\s\">]+"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^\s\"')]+"
)


def build(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of docs/ in `folder`, as `make docs` does."""
    python = in_environment(".venv-docs/bin/python", "docs")
    command = [
        str(python),
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        "docs/site/mkdocs.yml",
        "--site-dir",
        str(target),
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


DEAD = ("how-to/missing.md", "tutorial.md#missing", "/tutorial.html")


def test_site_is_built_without_a_dead_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(tmp_path).with_suffix(".md")) for path in tmp_path.rglob("*.html")}
    assert pages - {"404.md"} == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    found = {
        f"{path.relative_to(tmp_path)}: {match[0]}"
        for path in tmp_path.rglob("*")
        if path.suffix in {".html", ".css"}
        for match in _LOADED.finditer(path.read_text())
    }
    assert found == set()


def test_a_dead_link_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs/glossary.md").open("a") as page:
        page.writelines(f"\n[dead]({link})\n" for link in DEAD)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert [link for link in DEAD if f"'{link}'" not in done.stderr] == []
