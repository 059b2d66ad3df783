"""Uploads to a cluster lead to what they lead to on one machine: every format, type and order, valid and not."""

from __future__ import annotations

import base64
import gzip
import hashlib
import time
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import cycle, product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.cluster import gathers
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.running import BothTransport
from tests.conftest import SOAK, samples, slow_but_for
from tests.http.conftest import Start, start
from tests.http.forms import TYPES, int64
from tests.http.tensors import NPY, RAW, SAFETENSORS, npy
from tests.parity.items import Array, Rng, choose, items
from tests.parity.messages import raw, saved

__all__ = ["start"]

COUNT = 400 if SOAK else 30
SHAPES: tuple[list[int], ...] = ([], [0], [0, 3], [3, 0], [1], [1, 4], [2, 1, 3], [5], [9, 2], [4, 3, 2], [17, 5])
NOT_NPY = ("string", "bfloat16")
NOT_SAFETENSORS = ("string", "complex128")
NAME = "put"
KERNEL = "--kernel", "numpy"
"""What starts the fastest: what is uploaded is the same with any."""


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def both_uploads(start: Start, cluster: Clustered) -> Iterator[BothTransport]:
    with start(*KERNEL) as whole:
        made = BothTransport(cluster.router, whole)
        yield made
        made.close()


@pytest.fixture
def asked(both_uploads: BothTransport) -> httpx.Client:
    """A client whose requests go to both, whose answers have to be equal."""
    return httpx.Client(transport=both_uploads, base_url="http://both")


@dataclass
class Put:
    """An upload: the table, and how it is sent."""

    table: Array
    content: bytes
    kind: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, client: httpx.Client) -> httpx.Response:
        headers = ({"content-type": self.kind} if self.kind else {}) | self.headers
        return client.put(f"/tensors/{NAME}", params=self.query, content=self.content, headers=headers)


def random_put(rng: Rng) -> Put:
    """A table of any type and shape, in one of the formats that carry it."""
    dtype = choose(rng, TYPES)
    table = items(rng, dtype, choose(rng, SHAPES))
    kinds = [RAW]
    kinds += [NPY, NPY, ""] if dtype not in NOT_NPY else []
    kinds += [SAFETENSORS] if dtype not in NOT_SAFETENSORS else []
    kind = choose(rng, kinds)
    if kind == RAW:
        query = {"dtype": dtype, "shape": ",".join(map(str, table.shape))}
        return Put(table, raw(table), kind, query)
    if kind == SAFETENSORS:
        return Put(table, saved({"any": table}), kind)
    sent = table
    if rng.random() < 0.5:
        sent = np.asarray(sent, order="F")
    if rng.random() < 0.3:
        sent = sent.astype(sent.dtype.newbyteorder(">"))
    return Put(table, npy(sent), kind)


def spoil(rng: Rng, put: Put) -> None:
    """Make something of it wrong, or only unusual."""
    what = rng.integers(10)
    if what == 0:
        put.content = put.content[: int(rng.integers(len(put.content) + 1))]
    elif what == 1:
        put.content += bytes(int(rng.integers(1, 9)))
    elif what == 2:
        place = int(rng.integers(max(len(put.content), 1)))
        put.content = put.content[:place] + rng.bytes(1) + put.content[place + 1 :]
    elif what == 3:
        put.query["shape"] = choose(rng, ("", "x", "2,", "-1", "3,3", "99999999999999999999", ",".join("1" * 70)))
    elif what == 4:
        put.query["dtype"] = choose(rng, ("bool", "string", "float8", "int32"))
    elif what == 5:
        put.query["keep"] = choose(rng, ("0", "1", "x", "2"))
    elif what == 6:
        put.headers["content-encoding"] = "gzip"
        put.content = gzip.compress(put.content)[: len(put.content) + (20 if rng.random() < 0.7 else 0)]
    elif what == 7:
        digest = hashlib.sha256(put.content if rng.random() < 0.5 else b"x").digest()
        put.headers["content-digest"] = f"sha-256=:{base64.b64encode(digest).decode()}:"
    elif what == 8:
        put.headers[choose(rng, ("if-match", "if-none-match"))] = choose(rng, ('"a-0"', "*", "a"))
    else:
        put.kind = choose(rng, (RAW, NPY, SAFETENSORS, "text/plain"))


def read_back(client: httpx.Client, table: Array) -> None:
    """Ask for the table in every form that a download has; the bytes are those that were put."""
    for accept in (RAW, NPY, SAFETENSORS):
        for query in ({}, {"rows": "0:1"}, {"rows": "1:3"}, {"rows": "x"}):
            answer = client.get(f"/tensors/{NAME}/content", params=query, headers={"accept": accept})
            assert answer.status_code in (200, 406, 416, 422), answer.text
            if accept == RAW and not query:
                assert answer.content == raw(table)
    assert client.get(f"/tensors/{NAME}").status_code == 200
    client.get(f"/v2/models/{NAME}")


@pytest.mark.parametrize("share", slow_but_for((0,), range(2)))
def test_random_uploads(asked: httpx.Client, both_uploads: BothTransport, share: int) -> None:
    rng = np.random.default_rng([20, share])
    taken = 0
    for number in range(samples(COUNT) // 2):
        put = random_put(rng)
        if number % 3 == 0:
            spoil(rng, put)
        answer = put.send(asked)
        if number % 3:
            assert answer.is_success, answer.text
            read_back(asked, put.table)
            held = {NAME: put.table}
            if put.table.ndim:
                for _ in range(3):
                    gathers.send(asked, rng, gathers.random_gather(rng, held, spoiled=True))
            rows = len(put.table) if put.table.ndim else 1
            features = [{"tensor": NAME, "indices": int64([3], [0, rows - 1, rows])}]
            asked.post("/lookup", json={"features": features, "out_of_bounds": choose(rng, ("error", "fill"))})
            taken += 1
        # Numbers of versions go on where a name is put again, on both alike.
        if rng.random() < 0.2:
            asked.delete(f"/tensors/{NAME}")
    assert taken >= samples(COUNT) // 4


EACH_SHAPE = ((), (0, 2), (1, 3), (11, 3))
FEW = [*product(("string", "bfloat16"), EACH_SHAPE)]
SOME = list(dict.fromkeys([*FEW, *zip(TYPES, cycle(EACH_SHAPE))]))
"""`make test-all` gives each type one of the shapes."""


@pytest.mark.parametrize(("dtype", "shape"), slow_but_for(FEW, SOME, product(TYPES, EACH_SHAPE)))
def test_every_type_and_shape(asked: httpx.Client, dtype: str, shape: tuple[int, ...]) -> None:
    table = items(np.random.default_rng([len(shape), len(dtype)]), dtype, shape)
    query = {"dtype": dtype, "shape": ",".join(map(str, shape))}
    assert Put(table, raw(table), RAW, query).send(asked).is_success
    read_back(asked, table)
    if dtype not in NOT_NPY:
        other = np.asarray(table[..., ::-1] if shape else table, order="F")
        assert Put(other, npy(other), NPY).send(asked).is_success
        read_back(asked, other)


def test_large_tables_that_are_written_here_first(asked: httpx.Client) -> None:
    """Of more bytes than are read at once; of strings the ranges have very different sizes."""
    rng = np.random.default_rng(3)
    columns = np.asarray(rng.standard_normal((3001, 130)), order="F")
    assert Put(columns, npy(columns), NPY).send(asked).is_success
    read_back(asked, columns)
    strings = np.empty((400, 2), object)
    strings[:] = [["ä" * int(size), ""] for size in rng.integers(0, 12, 400) ** 4]
    put = Put(strings, raw(strings), RAW, {"dtype": "string", "shape": "400,2"})
    assert len(put.content) > 2 << 20
    assert put.send(asked).json()["bytes"] == len(put.content)
    read_back(asked, strings)
    gathers.send(asked, rng, gathers.random_gather(rng, {NAME: strings}, spoiled=False))


def times_told(client: httpx.Client) -> list[list[tuple[str, int, int]]]:
    """After each of some changes what is told of tables and aliases: in which steps each was created and modified."""
    begun: list[float] = []
    found = []

    def step() -> None:
        time.sleep(0.002)
        begun.append(time.time())

    def content() -> Iterator[bytes]:
        yield bytes(4)
        step()
        yield bytes(4)

    def put_version() -> None:
        query = {"dtype": "int8", "shape": "8", "keep": "2"}
        headers = {"content-type": RAW, "content-length": "8"}
        assert client.put("/tensors/timed", params=query, content=content(), headers=headers).is_success

    def move_alias(target: str) -> None:
        assert client.put("/aliases/timely", json={"tensor": target}).is_success

    def steps_of(document: Any) -> tuple[str, int, int]:
        moments = (datetime.fromisoformat(document[name]).timestamp() for name in ("created", "modified"))
        first, last = (bisect(begun, moment) for moment in moments)
        name = document.get("tensor") or f"{document['name']}@{document['version']}"
        return name, first, last

    for change in (
        put_version, put_version,
        lambda: move_alias("timed@1"), lambda: move_alias("timed@2"), lambda: move_alias("timed@2"),
        put_version, put_version, lambda: client.delete("/tensors/timed@4"), lambda: client.delete("/aliases/timely"),
        lambda: move_alias("timed@3"), lambda: client.delete("/aliases/timely"),
        lambda: client.delete("/tensors/timed"), put_version,
    ):  # fmt: skip
        step()
        change()
        told = [client.get(f"/tensors/timed{version}") for version in ("", "@1", "@2", "@3", "@4", "@5")]
        told.append(client.get("/aliases/timely"))
        found.append([steps_of(answer.json()) for answer in told if answer.status_code == 200])
    return found


def test_times_are_those_of_one_machine(both_uploads: BothTransport) -> None:
    """A table is created when its name comes into being, and modified when the whole of a version has come."""
    told = times_told(both_uploads.whole)
    assert told[0] == [("timed@1", 2, 2), ("timed@1", 2, 2)]
    assert times_told(both_uploads.router) == told
