"""A lookup is of one content of each table, while tables are scattered and replaced: the rows say which one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

import httpx
import numpy as np

from tests.http.conftest import Start
from tests.http.lookups import Given, as_safetensors, loaded
from tests.http.tensors import SAFETENSORS, put_raw, save

ROWS, WIDTH = 3000, 32
EVERY = np.arange(ROWS)
BINARY = {"content-type": SAFETENSORS}


def contents(version: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """A table whose every item is its version."""
    return np.full((ROWS, WIDTH), version, np.float32)


def check(content: bytes) -> tuple[float, float]:
    """The versions of both tables in an answer, which has each three times: all rows, these turned, their maximum."""
    arrays, lookup = loaded(content)
    etags = [told["data_etag"] for told in lookup["features"]]
    versions = []
    for first in (0, 1):
        numbers = range(first, 6, 2)
        values = {float(value) for number in numbers for value in np.unique(arrays[f"{number}.output"])}
        assert len(values) == 1, "rows of more than one content"
        assert len({etags[number] for number in numbers}) == 1
        versions.append(values.pop())
    return versions[0], versions[1]


def test_a_request_sees_one_content_of_each_table_while_they_are_scattered_and_replaced(
    start: Start, soak_scale: int
) -> None:
    features = []
    for number in range(6):
        table = ("scattered", "replaced")[number % 2]
        rows = EVERY if number < 2 else EVERY[::-1].copy()
        features.append(Given(table, rows, [0, 1000, 2000], pooling="max") if number > 3 else Given(table, rows))
    asked = as_safetensors(features, concat=False)
    seen: set[tuple[float, float]] = set()
    failures: list[BaseException] = []
    with start("--workers", "2", "--max-output-bytes", "64MiB") as server:

        def until_the_end(work: Callable[[httpx.Client, int], None]) -> threading.Thread:
            def run() -> None:
                try:
                    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                        number = 1
                        while monotonic() < ends:
                            work(client, number)
                            number += 1
                except BaseException as error:  # noqa: BLE001  (the test raises it)
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def scatter(client: httpx.Client, version: int) -> None:
            body = save(indices=EVERY.reshape(-1, 1), updates=contents(version))
            answer = client.post("/tensors/scattered/scatter", content=body, headers=BINARY)
            assert answer.status_code == 200, answer.text

        def replace(client: httpx.Client, version: int) -> None:
            assert put_raw(client, "replaced", contents(version)).status_code == 200

        def look(client: httpx.Client, number: int) -> None:
            answer = client.post("/lookup", content=asked, headers=BINARY)
            assert answer.status_code == 200, answer.text
            seen.add(check(answer.content))

        with httpx.Client(base_url=server.url, trust_env=False) as client:
            for name in ("scattered", "replaced"):
                assert put_raw(client, name, contents(0)).status_code == 201
        ends = monotonic() + 4 * soak_scale
        threads = [until_the_end(work) for work in (scatter, replace, look, look, look)]
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert len(seen) > 4, "nothing changed meanwhile"
    assert len({scattered for scattered, _ in seen}) > 2
