"""Ask the service every request of the corpus and keep its answers: `python -m tests.golden.write`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.answers import FLAGS, keep, service
from tests.golden.requests import requests
from tests.http.server import serving


def main() -> None:
    """Start a service, ask, and write the files."""
    with tempfile.TemporaryDirectory() as folder:
        cache, own = Path(folder) / "cache", Path(folder) / "server"
        command = [sys.executable, "-m", "app.cli", "warm", "--cache-dir", str(cache)]
        subprocess.run(
            command, check=True, capture_output=True
        )  # a minute; the text of a number is that of compiled code
        with serving(cache, own, *FLAGS) as server, service(server.port) as asking:
            lines = [(asked, asking.ask(asked)) for asked in requests()]
    keep(lines)
    sys.stdout.write(f"{len(lines)} answers\n")


if __name__ == "__main__":
    main()
