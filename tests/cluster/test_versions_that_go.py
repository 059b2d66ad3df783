"""A version that goes away while it is read: the request begins anew, and is of the version that the map has then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from app.formats.safetensors.header import write_header
from app.tensors.dtypes import DTYPES
from tests.cluster.answering import Handler, answering
from tests.cluster.running import routing
from tests.conftest import slow_but_for
from tests.http.conftest import Start
from tests.http.forms import int64

FLOAT = DTYPES["float32"]


def write_map(path: Path, address: str, *numbers: int) -> None:
    """A table of four rows whose version n is the tensor tn."""
    versions = [
        {
            "number": number, "content_id": f"c{number}", "dtype": "float32", "shape": [4, 2],
            "ranges": [{"start": 0, "stop": 4, "tensor": f"t{number}@1", "replicas": [{"address": address}]}],
        }
        for number in numbers
    ]  # fmt: skip
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"generation": numbers[-1], "tables": {"t": {"versions": versions}}}))
    beside.rename(path)


@contextmanager
def shard(path: Path, goes: int) -> Iterator[str]:
    """Answers rows of the number of a version; the first `goes` are gone, and out of the map, when they are read."""

    class Shard(Handler):
        def respond(self) -> None:
            body = self.read_body()
            if self.command == "GET":
                self.answer(200, b"{}")
                return
            number = int(self.path.partition("tensor=t")[2].partition("@")[0])
            rows = (len(body) - 8 - int.from_bytes(body[:8], "little")) // 8
            if number <= goes:
                write_map(path, address, number + 1)
                sleep(1.5)  # the router reads the file every second
                self.answer(404, b'{"code": "tensor_not_found"}')
                return
            content = write_header("output", FLOAT, (rows, 2), 8 * rows)
            self.answer(200, content + np.full(2 * rows, number, np.float32).tobytes())

    with answering(Shard) as address:
        yield address


@pytest.mark.parametrize("name", slow_but_for(("t",), ("t", "t@1")))
@pytest.mark.parametrize("route", ["/gathernd", "/lookup"])
def test_a_request_begins_anew(start: Start, tmp_path: Path, route: str, name: str) -> None:
    path = tmp_path / "map.json"
    body: dict[str, Any]
    if route == "/lookup":
        body = {"features": [{"tensor": name, "indices": int64([2], [1, 3])}]}
    else:
        body = {"data": {"tensor": name}, "indices": int64([2, 1], [1, 3])}
    with shard(path, goes=1) as address:
        write_map(path, address, 1)
        with routing(start, path) as router, router.client() as client:
            answer = client.post(route, json=body)
            told = answer.json()
            if name == "t@1":
                assert (answer.status_code, told["code"]) == (404, "tensor_not_found")
                return
            assert answer.status_code == 200, answer.text
            version = told["version"] if route == "/gathernd" else told["features"][0]["version"]
            assert version == 2
            assert told["output"]["values"] == [2, 2, 2, 2]


def test_versions_that_go_one_after_the_other_end_it(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    with shard(path, goes=9) as address:
        write_map(path, address, 1)
        with routing(start, path) as router, router.client() as client:
            answer = client.post("/gathernd", json={"data": {"tensor": "t"}, "indices": int64([2, 1], [1, 3])})
            assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
            assert "was removed while it was read" in answer.json()["detail"]
