"""A lookup of 26 tables is of one content of each, while they are scattered, replaced and moved by aliases.

Every item of a table is the stamp of its content, which no other content of the table has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from time import monotonic
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import SOAK, slow_but_for
from tests.http.conftest import Start
from tests.http.lookups import Given, as_json, as_safetensors, loaded, read_output
from tests.http.tensors import RAW, SAFETENSORS, save

ROWS, WIDTH, BAGS = 600, 16, 6
EVERY = np.arange(ROWS)
BAG_STARTS = list(range(0, ROWS, ROWS // BAGS))
BINARY = {"content-type": SAFETENSORS}
SCATTERED = [f"scattered-{number}" for number in range(9)]
REPLACED = [f"replaced-{number}" for number in range(9)]
PUBLISHED = [f"published-{number}" for number in range(8)]
"""Tables that are asked for by an alias, which is moved to each new version once that is there."""
FIRST_NAMES = [*SCATTERED, *REPLACED, *(f"live-{name}" for name in PUBLISHED)]
SECOND_NAMES = [*(f"{name}@1" for name in SCATTERED[:4]), *(f"same-{name}" for name in SCATTERED[4:])]
SECOND_NAMES += [*REPLACED, *(f"live-{name}" for name in PUBLISHED)]
"""Of the same tables in the same order: scattered ones by their version, or by an alias that is not moved."""


class Seen(NamedTuple):
    """What a lookup says of a table: the ETag and the version, and the stamp that its rows have."""

    table: int
    etag: str
    version: int
    stamp: float


def contents(stamp: int) -> NDArray[np.float32]:
    return np.full((ROWS, WIDTH), stamp, np.float32)


def features() -> list[Given]:
    """All rows of each table as bags, from the first and from the last on, and three rows as they are."""
    bagged = [Given(name, EVERY, BAG_STARTS, pooling="max") for name in FIRST_NAMES]
    turned = [Given(name, EVERY[::-1].copy(), BAG_STARTS, pooling="max") for name in SECOND_NAMES]
    return [*bagged, *turned, *(Given(name, EVERY[[0, ROWS // 2, -1]]) for name in FIRST_NAMES)]


def check(outputs: list[NDArray[Any]], told: list[dict[str, Any]]) -> Iterator[Seen]:
    """What an answer says of each table; no table has rows of two contents."""
    tables = len(FIRST_NAMES)
    for table in range(tables):
        numbers = range(table, len(outputs), tables)
        stamps = {float(stamp) for number in numbers for stamp in np.unique(outputs[number])}
        assert len(stamps) == 1, f"rows of more than one content of {FIRST_NAMES[table]}: {stamps}"
        (said,) = {(told[number]["data_etag"], told[number]["version"]) for number in numbers}
        yield Seen(table, *said, stamps.pop())


def put(client: httpx.Client, name: str, stamp: int) -> httpx.Response:
    query = {"dtype": "float32", "shape": f"{ROWS},{WIDTH}", "keep": "2"}
    body = contents(stamp).tobytes()
    answer = client.put(f"/tensors/{name}", params=query, content=body, headers={"content-type": RAW})
    assert answer.is_success, answer.text
    return answer


def move(client: httpx.Client, alias: str, reference: str) -> None:
    answer = client.put(f"/aliases/{alias}", json={"tensor": reference})
    assert answer.is_success, answer.text


@pytest.mark.parametrize("workers", slow_but_for((1,), (1, 2)))
def test_a_request_of_26_tables_sees_one_content_of_each_while_they_change(
    start: Start, soak_scale: int, workers: int
) -> None:
    asked = features()
    binary, text = as_safetensors(asked, concat=False), as_json(asked, concat=False)
    seen: set[Seen] = set()
    stamps: dict[str, float] = {}
    failures: list[BaseException] = []

    def changes() -> list[int]:
        """In how many contents each table was seen."""
        found = seen.copy()
        return [len({one.etag for one in found if one.table == table}) for table in range(len(FIRST_NAMES))]

    def all_changed() -> bool:
        return min(changes()) > 1

    with start("--workers", str(workers), "--max-output-bytes", "64MiB") as server:

        def until_the_end(work: Callable[[httpx.Client, str, int], None], *names: str) -> threading.Thread:
            def run() -> None:
                try:
                    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                        for number, name in enumerate(cycle(names)):
                            if failures or (monotonic() >= ends and (all_changed() or monotonic() >= ends + 60)):
                                return
                            work(client, name, 2 + number // len(names))
                except BaseException as error:  # noqa: BLE001  (the test raises it)
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def scatter(client: httpx.Client, name: str, stamp: int) -> None:
            body = save(indices=EVERY.reshape(-1, 1), updates=contents(stamp))
            answer = client.post(f"/tensors/{name}/scatter", content=body, headers=BINARY)
            assert answer.status_code == 200, answer.text
            stamps[answer.json()["etag"]] = stamp

        def replace(client: httpx.Client, name: str, stamp: int) -> None:
            stamps[put(client, name, stamp).json()["etag"]] = stamp

        def publish(client: httpx.Client, name: str, stamp: int) -> None:
            replace(client, name, stamp)
            move(client, f"live-{name}", f"{name}@{stamp}")

        def look(client: httpx.Client, form: str, number: int) -> None:
            if form == "json":
                answer = client.post("/lookup", json=text)
                assert answer.status_code == 200, answer.text
                body = answer.json()
                outputs, told = [read_output(output) for output in body["outputs"]], body["features"]
            else:
                answer = client.post("/lookup", content=binary, headers=BINARY)
                assert answer.status_code == 200, answer.text
                arrays, said = loaded(answer.content)
                outputs, told = [arrays[f"{number}.output"] for number in range(len(asked))], said["features"]
            seen.update(check(outputs, told))

        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            for name in (*SCATTERED, *REPLACED, *PUBLISHED):
                replace(client, name, 1)
                if name in SCATTERED[4:]:
                    move(client, f"same-{name}", f"{name}@1")
                if name in PUBLISHED:
                    move(client, f"live-{name}", f"{name}@1")
        ends = monotonic() + (4 * soak_scale if SOAK else 1.5)
        threads = [
            until_the_end(scatter, *SCATTERED[:5]),
            until_the_end(scatter, *SCATTERED[5:]),
            until_the_end(replace, *REPLACED),
            until_the_end(publish, *PUBLISHED),
            *(until_the_end(look, form) for form in ("json", "safetensors", "safetensors")),
        ]
        for thread in threads:
            thread.join()
    assert not failures, failures
    for one in seen:
        assert stamps[one.etag] == one.stamp, "the ETag is of another content"
        assert one.version == (1 if one.table < len(SCATTERED) else one.stamp)
    assert all_changed(), f"not every table was seen in two contents: {changes()}"
