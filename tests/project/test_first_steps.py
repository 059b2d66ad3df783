"""The first lines of the README lead from a checkout to the first row, with an empty HOME and new environments."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.block_shell import Shell
from tests.free_port import free_port
from tests.markdown_blocks import ROOT, blocks, check_output

FIRST_STEPS = next(block for block in blocks(ROOT / "README.md") if block.language == "bash")
_LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "node_modules", "shared", "*.egg-info", "__pycache__"
)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_first_steps_lead_to_the_first_row(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=_LEFT_BEHIND)
    (tmp_path / "home").mkdir()
    port = free_port()
    own = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in {"LANG", "TZ"}}
    variables = kept | {
        "HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own),
        "GATHERND_PORT": str(port),
        "GATHERND_URL": f"http://127.0.0.1:{port}",
    }
    shell = Shell(checkout, variables)
    try:
        printed = shell.run(FIRST_STEPS.code.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    finally:
        shell.close()
    assert FIRST_STEPS.output is not None
    last = printed.splitlines()[-len(FIRST_STEPS.output.code.splitlines()) :]  # make and pip may say things before
    check_output(FIRST_STEPS.output, "\n".join(last))
