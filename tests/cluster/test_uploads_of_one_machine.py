"""Uploads to a cluster lead to what they lead to on one machine: every format, type and order, valid and not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.cluster import gathers
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.running import BothTransport
from tests.conftest import slow_but_for
from tests.http.conftest import Start, start
from tests.http.forms import TYPES
from tests.http.tensors import NPY, RAW, SAFETENSORS, npy
from tests.parity.items import Array, items
from tests.parity.messages import raw

__all__ = ["start"]

NOT_NPY = ("string", "bfloat16")
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
    gathers.send(asked, rng, gathers.random_gather(rng, {NAME: strings}, is_wrong=False))
