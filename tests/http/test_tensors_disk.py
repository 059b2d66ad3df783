"""A disk that is really full, one that may not be written, files that change behind the service's back."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import numpy as np
import pytest

from app.store.catalogue.catalogue_database import FILE
from tests.conftest import SOAK
from tests.http.conftest import Start
from tests.http.limited import SmallDisk, as_owner, small_disk
from tests.http.tensors import dying, error, look_up, put_raw, put_strings, save
from tests.store.filler import Filler

MIB = 1 << 20
BINARY = {"content-type": "application/x-safetensors"}
SMALLEST = 1 << 14


def full(answer: httpx.Response) -> bool:
    """Whether the answer refuses for want of space; any other refusal fails."""
    if answer.status_code < 300:
        return False
    assert "No space left on device" in error(answer, 507, "insufficient_storage")["detail"]
    return True


class Held:
    """What has been acknowledged: the content of each tensor."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.contents: dict[str, np.ndarray[Any, Any]] = {}

    def put(self, name: str, size: int, value: int) -> bool:
        """Upload `size` bytes; whether there was space for them."""
        content = np.full(size // 8, value, np.int64)
        answer = put_raw(self.client, name, content)
        if full(answer):
            return False
        self.contents[name] = content
        return True

    def scatter(self, name: str, key: str) -> bool:
        """Add one to the first and the last item; whether there was space for that."""
        content = self.contents[name]
        body = save(indices=np.array([[0], [len(content) - 1]]), updates=np.ones(2, np.int64))
        answer = self.client.post(
            f"/tensors/{name}/scatter?reduction=add", content=body, headers={**BINARY, "idempotency-key": key}
        )
        if full(answer):
            return False
        content = content.copy()
        content[[0, -1]] += 1
        self.contents[name] = content
        return True

    def delete(self, name: str) -> None:
        answer = self.client.delete(f"/tensors/{name}")
        assert answer.status_code == 204, answer.text
        del self.contents[name]

    def check(self) -> None:
        """Everything that was acknowledged is there, nothing else, and it is served."""
        listed = self.client.get("/tensors?limit=1000").json()["tensors"]
        assert {found["name"] for found in listed} == set(self.contents)
        for name, content in self.contents.items():
            assert self.client.get(f"/tensors/{name}/content").content == content.tobytes(), name
            last = len(content) - 1
            answer = look_up(self.client, name, [0, last])
            assert answer.json()["output"]["values"] == content[[0, last]].tolist(), answer.text


def fill(held: Held, size: int) -> None:
    """Upload until the disk has no room for the smallest content."""
    number = len(held.contents)
    while size >= SMALLEST:
        while held.put(f"n{number}", size, number):
            number += 1
        size //= 2


@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=pytest.mark.slow)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", request.param, 24 * MIB) as made:
        yield made


def test_a_full_disk_refuses_changes_and_loses_nothing(start: Start, disk: SmallDisk) -> None:
    store = disk.seen / "store"
    flags = ("--kernel", "numpy", "--store-dir", str(disk.place / "store"))
    with dying(start, *flags, command=disk.command()) as server, server.client() as client:
        held = Held(client)
        (disk.seen / "filler").mkdir()  # later there is no room for it
        assert held.put("kept", 2 * MIB, 1)
        for number in range(5):
            assert held.scatter("kept", f"before-{number}")
        fill(held, 3 * MIB)
        assert disk.free() < MIB
        held.check()
        # Replaced by what does not fit, and by what does not even fit with the old one gone.
        for size in (2 * MIB, 30 * MIB):
            assert not held.put("kept", size, 2)
        strings = ["x" * 1000] * 2000
        assert full(put_strings(client, "kept", strings))
        held.check()
        refused = 0
        for number in range(200 if SOAK else 10):
            refused += not held.scatter("kept", f"full-{number}")
        held.check()
        assert list((store / "incoming").iterdir()) == []
        os.killpg(server.process.pid, signal.SIGKILL)
    # It starts on what the store itself has filled, and everything is there.
    filler = Filler(disk.seen / "filler")
    with start(*flags, command=disk.command()) as server, server.client() as client:
        held.client = client
        held.check()
        filler.fill()
        held.delete("n1")
        held.delete("n2")
        rmtree(disk.seen / "filler")
        assert held.put("new", 2 * MIB, 3)
        assert held.put("kept", MIB, 4)
        assert held.scatter("kept", "after")
        held.check()
        for name in list(held.contents):
            held.delete(name)
        assert held.put("large", 16 * MIB, 5)
        held.check()


def refused(answer: httpx.Response) -> None:
    found = error(answer, 507, "insufficient_storage")
    assert "Permission denied" in found["detail"]


def file_of(folder: Path, name: str) -> Path:
    connection = sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)
    ((file,),) = connection.execute("SELECT file FROM tensors WHERE name = ?", (name,)).fetchall()
    connection.close()
    return folder / "tensors" / str(file)


def test_files_that_are_damaged_behind_the_service_s_back_harm_no_other_tensor(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    names = ("unreadable", "grown", "header", "other", "removed", "folder")
    flags = ("--kernel", "numpy", "--store-dir", str(folder))
    with start(*flags, command=as_owner()) as server, server.client() as client:
        held = Held(client)
        for number, name in enumerate(names):
            assert held.put(name, 8000, number)
        assert held.put("whole", 8000, 9)
        file_of(folder, "unreadable").chmod(0)
        with file_of(folder, "grown").open("ab") as file:
            file.write(b"more")
        with file_of(folder, "header").open("r+b") as file:
            file.write(b"\xff" * 4096)
        file_of(folder, "other").write_bytes(file_of(folder, "whole").read_bytes())
        file_of(folder, "removed").unlink()
        file_of(folder, "folder").unlink()
        file_of(folder, "folder").mkdir()
        for _ in range(2):
            for name in names:
                error(look_up(client, name, [3]), 500, "tensor_damaged")
            assert look_up(client, "whole", [3]).json()["output"]["values"] == [9]
        listed = client.get("/tensors").json()["tensors"]
        damaged = {found["name"] for found in listed if found.get("damaged")}
        assert (len(listed), damaged) == (len(names) + 1, set(names))
        # A new content mends each.
        for number, name in enumerate(names):
            answer = put_raw(client, name, np.full(5, number))
            assert answer.status_code < 300, answer.text
            assert look_up(client, name, [4]).json()["output"]["values"] == [number]
    with start(*flags) as server, server.client() as client:
        assert look_up(client, "whole", [3]).json()["output"]["values"] == [9]
        assert look_up(client, "header", [4]).json()["output"]["values"] == [2]
