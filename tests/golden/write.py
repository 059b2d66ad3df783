"""Ask the service every request of the corpus and keep its answers: `python -m tests.golden.write`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.answers import FLAGS, keep, service
from tests.golden.requests import requests
from tests.http.server import serving

CACHE = Path(__file__).parents[2] / ".pytest_cache/d/compiled"
"""Where the fixture `warmed` keeps compiled code."""


def main() -> None:
    """Start a service, ask, and write the files."""
    # Compiled code writes the text of numbers. It takes a minute to compile, unless tests have left it here.
    sys.stdout.write("compiling ...\n")
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "app.cli", "warm", "--cache-dir", str(CACHE)], check=True, capture_output=True
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(CACHE, Path(folder) / "server", *FLAGS) as server,
        service(server.port) as asking,
    ):
        lines = [(asked, asking.ask(asked)) for asked in requests()]
    keep(lines)
    sys.stdout.write(f"{len(lines)} answers\n")


if __name__ == "__main__":
    main()
