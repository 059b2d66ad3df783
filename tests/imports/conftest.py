from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.http.conftest import start
from tests.needs import in_environment

__all__ = ["moto", "start"]
_ADDRESS = re.compile(r"Running on (http://127\.0\.0\.1:[0-9]+)")


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's server of S3, on a free port."""
    python = in_environment(".venv-clients/moto/bin/python", "clients")
    log: Path = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = monotonic() + 60
        while (found := _ADDRESS.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert monotonic() < end, log.read_text()
            sleep(0.05)
        yield found[1]
    finally:
        process.kill()
        process.wait()
