"""The script of docs/how-to/publish-every-night.md, on nights on which something is wrong."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gathernd import Client
from tests.http.server import Server, run_program, serving
from tests.needs import ROOT

pytestmark = pytest.mark.slow
Table = NDArray[Any]


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

    def publish(self, table: Table, *options: str) -> str:
        """What it prints, or the message with which it ends."""
        np.save(self.folder / "table.npy", table)
        command = [sys.executable, "publish.py", "prices", "live", "table.npy", *options]
        done = run_program(command, self.folder, self._variables)
        assert "Traceback" not in done.stderr
        assert (done.returncode == 0) == (not done.stderr)
        return done.stdout + done.stderr


@pytest.fixture
def publisher(tmp_path: Path, server: Server) -> Publisher:
    return Publisher(tmp_path, server.url)


def table(value: float, width: int = 4, rows: int = 300) -> Table:
    return np.full((rows, width), value, np.float32)


def with_value(value: float, row: int) -> Table:
    found = table(2)
    found[row, -1] = value
    return found


BAD: dict[str, tuple[Table, str]] = {
    "a NaN in one row": (with_value(np.nan, 5), "not finite, the first in row 5"),
    "rows of another shape": (table(2, 5), "its rows are of the shape (5,)"),
    "another type": (np.zeros((300, 4), np.float64), "it is of the type float64, prices@2 of float32"),
    "few rows": (table(2, rows=269), "it has 269 rows, prices@2 has 300"),
    "no rows": (table(2, rows=0), "it has no rows"),
    "a known row that is another": (table(2), "row 7 is not what known.npz says"),
}


def test_a_bad_table_is_never_live_and_leaves_nothing(publisher: Publisher, client: Client) -> None:
    assert "'false' failed" in publisher.publish(table(1), "--then", "false")
    assert [*client.aliases(), *client.tensors()] == []
    assert publisher.publish(table(1)) == "live is prices@2\n"  # no number is given twice
    np.savez(publisher.folder / "known.npz", rows=[0, 7], values=[[2] * 4, [3] * 4])
    for name, (bad, expected) in BAD.items():
        known = ("--known", "known.npz") if "known" in name else ()
        assert expected in publisher.publish(bad, *known), name
        assert client.alias("live").version == client.metadata("prices").version == 2, name
        assert client.metadata("prices").versions == (2,), name
    assert client.gather("live", [0]).tolist() == [[1] * 4]


def test_a_good_table_passes_every_check_and_three_versions_stay(publisher: Publisher, client: Client) -> None:
    publisher.publish(table(1))
    np.savez(publisher.folder / "known.npz", rows=[0, 7], values=[[2] * 4] * 2)
    assert publisher.publish(table(2, rows=270), "--known", "known.npz") == "live is prices@2, and was prices@1\n"
    fewer = publisher.publish(table(3, rows=10), "--min-rows-ratio", "0.01")
    assert fewer == "live is prices@3, and was prices@2\n"
    assert client.gather("live", [9]).tolist() == [[3] * 4]
    publisher.publish(table(4, rows=10))
    assert client.metadata("prices").versions == (2, 3, 4)


def test_a_table_that_is_served_otherwise_than_it_is_in_the_file_is_never_live(
    publisher: Publisher, client: Client
) -> None:
    """It is changed by somebody between the upload and the look at it."""
    publisher.publish(table(1))
    script = publisher.folder / "publish.py"
    served = "        check_served(client, reference, table)\n"
    assert served in script.read_text()
    change = "        client.scatter(name, [[250]], [[9, 9, 9, 9]])\n"
    script.write_text(script.read_text().replace(served, change + served))
    assert "are not served as in the file" in publisher.publish(table(2))
    assert client.alias("live").tensor == "prices@1"
    assert client.metadata("prices").versions == (1,)


def test_the_command_sees_the_new_version_live_and_the_old_one_comes_back(publisher: Publisher, client: Client) -> None:
    publisher.publish(table(1))
    text = publisher.publish(table(2), "--then", "gathernd aliases ls > seen.txt; false")
    assert "failed" in text
    assert (publisher.folder / "seen.txt").read_text().startswith("live\tprices@2\t")
    assert client.alias("live").tensor == "prices@1"
    assert client.metadata("prices").versions == (1,)
    publisher.publish(table(2))
    text = publisher.publish(table(3), "--then", "gathernd aliases set live prices@1; false")
    assert "precondition_failed" in text  # who moves the alias meanwhile is not overruled
    assert client.alias("live").tensor == "prices@1"
