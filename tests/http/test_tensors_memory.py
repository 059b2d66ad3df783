"""Tensors larger than the memory that the service may use: uploaded and looked up through the page cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from gathernd import Client
from tests.http.conftest import Start
from tests.http.held import metric
from tests.http.limited import memory_group
from tests.http.server import Server
from tests.http.tensors import NPY, RAW

MIB = 1 << 20
WIDTH = 1024
"""Items of int32 in a row, which makes it one page."""


def rows_of(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    """The rows of a table by their numbers: row i holds i * 7919 + 0, 1, 2, …"""
    return (numbers[:, None] * 7919 + np.arange(WIDTH)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_table_larger_than_the_memory_of_its_control_group_is_served(start: Start, soak_scale: int) -> None:
    """It is made piece by piece and never held whole; looked up, and looked up again after a scatter."""
    limit, size, stride = (320, 384, 8) if soak_scale == 1 else (512, 4096, 1)  # MiB, MiB, one row in so many
    rows, rng = size * 256, np.random.default_rng(stride)
    pieces = (rows_of(np.arange(first, first + 1024)).tobytes() for first in range(0, rows, 1024))
    query = {"dtype": "int32", "shape": f"{rows},{WIDTH}"}
    headers = {"content-type": RAW, "content-length": str(size * MIB)}
    with (
        memory_group(limit * MIB) as group,
        start(command=group.command()) as server,
        server.client() as client,
        Client(server.url) as service,
    ):
        assert client.put("/tensors/table", params=query, content=pieces, headers=headers).status_code == 201
        for step in (stride, 5 * stride):
            for first in range(0, rows, 1024 * step):
                for asked in (np.arange(first, min(first + 1024 * step, rows), step), rng.integers(0, rows, 64)):
                    assert np.array_equal(service.gathernd("table", asked[:, None]), rows_of(asked)), asked
            service.scatter("table", [[0], [rows - 1]], np.zeros((2, WIDTH), np.int32), "add")
        assert 0 < group.peak() <= limit * MIB < size * MIB
        assert group.killed() == 0
        # The service knows its limit, and so that this content will never be in memory whole.
        assert metric(server, "gathernd_memory_budget_bytes") <= limit * MIB


@contextmanager
def peak_of(server: Server) -> Iterator[Callable[[], int]]:
    """By how many bytes the server's own memory, without files, has grown at most since the block began."""

    def used() -> int:
        lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) * 1024

    before = used()
    most = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most.append(used())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield lambda: max(most) - before
    finally:
        done.set()
        watching.join()


FRAME = (1020).to_bytes(4, "little") + b"a" * 1020
"""A string as an upload has it."""


def forms(size: int) -> dict[str, tuple[bytes, dict[str, str], dict[str, Any]]]:
    """What stands before the items, the query and the header fields of an upload of `size` bytes, in each form."""
    shape = (size // (4 * WIDTH), WIDTH)

    def npy(order: bool, descr: str = "<i4") -> bytes:
        text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()

    saved = safetensors.numpy.save({"t": np.zeros((1, 1), np.int32)})
    text = saved[8:-4].replace(b"[1,1]", str(list(shape)).encode()).replace(b"[0,4]", f"[0,{size}]".encode())
    return {
        "raw": (b"", {"dtype": "int32", "shape": f"{shape[0]},{shape[1]}"}, {"content-type": RAW}),
        "strings": (b"", {"dtype": "string", "shape": str(size // len(FRAME))}, {"content-type": RAW}),
        "npy": (npy(False), {}, {"content-type": NPY}),
        "npy in Fortran order": (npy(True), {}, {"content-type": NPY}),
        "npy, big endian": (npy(False, ">i4"), {}, {"content-type": NPY}),
        "safetensors": (len(text).to_bytes(8, "little") + text, {}, {}),
    }


@pytest.mark.parametrize("form", forms(4096))
@pytest.mark.timeout(3600)
def test_an_upload_takes_no_memory_that_grows_with_it(server: Server, form: str, soak_scale: int) -> None:
    size = (64 if soak_scale == 1 else 1024) * MIB
    head, query, headers = forms(size)[form]
    piece = FRAME * 1024 if form == "strings" else bytes(range(256)) * 4096

    def body() -> Iterator[bytes]:
        yield head
        for _ in range(size // len(piece)):
            yield piece

    with server.client() as client:
        small, of_small, _ = forms(MIB)[form]
        assert client.put("/tensors/big", params=of_small, content=small + piece, headers=headers).status_code == 201
        headers["content-length"] = str(len(head) + size)
        with peak_of(server) as grown:
            answer = client.put("/tensors/big", params=query, content=body(), headers=headers)
        assert answer.status_code == 200, answer.text
        assert grown() < 32 * MIB, f"{grown() / MIB:.0f} MiB for {size / MIB:.0f} MiB"
        stored = client.get("/tensors/big").json()["bytes"]
        assert stored == size or (form == "strings" and stored > size)
        client.delete("/tensors/big")
