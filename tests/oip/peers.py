"""Environments of other people's clients whose pins clash with ours: one that is named, or one made for the soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from platformdirs import user_cache_path


def interpreter(package: str) -> str:
    """The Python of an environment that has `package`.

    GATHERND_<PACKAGE>_PYTHON names one; else one is made in a folder of this user's cache, where it stays.
    """
    given = os.environ.get(f"GATHERND_{package.upper()}_PYTHON")
    if given:
        return given
    folder = Path(user_cache_path("gathernd-peers")) / f"{package}-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", package], check=True)
        stamp.touch()
    return str(python)
