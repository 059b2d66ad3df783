"""The script of docs/how-to/publish-every-night.md, on nights on which something is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gathernd import Client
from tests.http.server import Server, serving
from tests.needs import ROOT


@pytest.fixture
def server(warmed: Path, tmp_path: Path) -> Iterator[Server]:
    """One for each test, since numbers are never given twice."""
    with serving(warmed, tmp_path / "service") as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


class Publisher:
    """The script in a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        document = (ROOT / "docs" / "how-to" / "publish-every-night.md").read_text()
        found = re.search(r"cat > publish.py <<'END'\n(.*?)^END$", document, re.MULTILINE | re.DOTALL)
        assert found is not None
        self.folder = folder
        (folder / "publish.py").write_text(found[1])
        self._variables = {
            **os.environ, "GATHERND_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip

    def publish(self, table: np.ndarray[tuple[int, ...], np.dtype[np.float32]], *options: str) -> str:
        """What it prints, or the message with which it ends."""
        np.save(self.folder / "table.npy", table)
        done = subprocess.run(
            [sys.executable, "publish.py", "prices", "live", "table.npy", *options],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        assert (done.returncode == 0) == (not done.stderr)
        return done.stdout + done.stderr


@pytest.fixture
def publisher(tmp_path: Path, server: Server) -> Publisher:
    return Publisher(tmp_path, server.url)


def table(value: float, width: int = 4) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((300, width), value, np.float32)


@pytest.mark.slow
def test_a_first_night_that_fails_leaves_nothing(publisher: Publisher, client: Client) -> None:
    assert "not finite" in publisher.publish(table(np.inf))
    assert "'false' failed" in publisher.publish(table(1), "--then", "false")
    assert list(client.aliases()) == []
    assert list(client.tensors()) == []
    assert publisher.publish(table(1)) == "live is prices@3\n"  # no number is given twice


def test_a_table_of_other_rows_is_never_live(publisher: Publisher, client: Client) -> None:
    publisher.publish(table(1))
    assert "rows are not of the shape" in publisher.publish(table(2, 5))
    assert client.alias("live").version == client.metadata("prices").version == 1
    assert client.gather("live", [0]).tolist() == [[1] * 4]


def test_the_command_sees_the_new_version_live_and_the_old_one_comes_back(publisher: Publisher, client: Client) -> None:
    publisher.publish(table(1))
    text = publisher.publish(table(2), "--then", "gathernd aliases ls > seen.txt; false")
    assert "failed" in text
    assert (publisher.folder / "seen.txt").read_text().startswith("live\tprices@2\t")
    assert client.alias("live").tensor == "prices@1"
    assert client.metadata("prices").versions == (1,)


@pytest.mark.slow
def test_who_moves_the_alias_meanwhile_is_not_overruled(publisher: Publisher, client: Client) -> None:
    publisher.publish(table(1))
    publisher.publish(table(2))
    text = publisher.publish(table(3), "--then", "gathernd aliases set live prices@1; false")
    assert "precondition_failed" in text
    assert client.alias("live").tensor == "prices@1"


@pytest.mark.slow
def test_three_versions_stay_and_the_one_that_is_live(publisher: Publisher, client: Client) -> None:
    for number in range(1, 6):
        publisher.publish(table(number))
    assert client.metadata("prices").versions == (3, 4, 5)
    client.put_alias("live", "prices@3")
    publisher.publish(table(6), "--keep", "2")
    assert client.metadata("prices").versions == (3, 5, 6)
    publisher.publish(table(7), "--keep", "2")
    assert client.metadata("prices").versions == (6, 7)
