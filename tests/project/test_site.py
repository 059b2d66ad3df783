"""The site that `make docs` builds: no dead link, and nothing loaded from another host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.needs import ROOT, in_environment

# What a browser fetches by itself; a link that a reader may follow is another matter.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//[^\s\">]+"
    r"|<link(?![^>]*rel=\"?canonical)[^>]*\shref=\"?(?:https?:)?//[^\s\">]+"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^\s\"')]+"
)


@pytest.mark.slow
def test_site_is_built_without_a_dead_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    mkdocs = [str(in_environment(".venv-docs/bin/python", "docs")), "-m", "mkdocs", "build", "--strict"]
    command = [*mkdocs, "--config-file", "docs/site/mkdocs.yml", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
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
