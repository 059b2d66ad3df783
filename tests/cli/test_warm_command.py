"""The command that compiles ahead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import warm_command


@pytest.mark.parametrize("place", ["file", "file/below", "read-only"])
def test_the_command_fails_where_the_folder_keeps_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Numba turns to a folder of its own where it cannot write into the one that is named.
    monkeypatch.setattr(warm_command, "warm", lambda folder, progress: None)
    (tmp_path / "file").touch()
    folder = tmp_path / place
    done = CliRunner().invoke(warm_command.app, ["--cache-dir", str(folder)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"gathernd: {folder}: ")
    assert done.stderr.count("\n") == 1


def test_what_a_service_with_numpys_kernel_imports_has_no_numba(tmp_path: Path) -> None:
    """Its import alone takes a quarter of a second."""
    program = (
        "import sys; from app.main import create_app; from app.settings import Settings; from app import warmup;"
        f"app = create_app(Settings(kernel='numpy', store_dir={str(tmp_path)!r}));"
        "from pathlib import Path; assert warmup.warm(Path('cache'), print, 'numpy') is None;"
        "sys.exit(', '.join({'numba', 'llvmlite'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
