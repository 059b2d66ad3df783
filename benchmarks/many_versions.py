"""A store of 1,000 names with 100 versions each beside one of ten names: start, look-ups, pages of a listing, uploads.

    python -m benchmarks.many_versions [--rounds 100]

Both stores are in this process, without a service. They are asked in turns; medians. A start is that of the larger one,
with its files in the system's cache. An upload is of a small tensor, the next version of a name that is there, durable
on the disk that the temporary folder is on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from app.store import LocalStore
from benchmarks.common import machine_line
from tests.store.helpers import put
from tests.store.test_many_versions import entered, looked_up, opened

SIZES = {10: 1, 1000: 100}
LOOKUPS = 1000


def look_up(store: LocalStore) -> None:
    """Find a tensor by its name, by a number and by an alias, again and again."""
    for _ in range(LOOKUPS // 3):
        store.get("t0")
        store.get("t0@1")
        store.get("live-t0")


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    print(machine_line())
    with tempfile.TemporaryDirectory() as room:
        for names, versions in SIZES.items():
            entered(Path(room) / str(names), names, versions)
        starts = []
        for _ in range(5):
            begun = time.perf_counter()
            store = opened(Path(room) / "1000")
            starts.append(time.perf_counter() - begun)
            store.close()
        print(f"start with 100,000 versions {median(starts):.2f} s (from {min(starts):.2f} to {max(starts):.2f})")
        stores = {names: opened(Path(room) / str(names)) for names in SIZES}
        times: dict[tuple[int, str], list[float]] = {}
        for names, store in stores.items():
            looked_up(store, names)
        for turn in range(options.rounds):
            for names, store in stores.items():
                content = np.arange(turn + 1)
                works: dict[str, Callable[[], object]] = {
                    f"{LOOKUPS} look-ups": lambda store=store: look_up(store),  # type: ignore[misc]
                    "a page of 10": lambda store=store: store.page(10, None),  # type: ignore[misc]
                    "an upload": lambda store=store, content=content: put(store, "t5", content),  # type: ignore[misc]
                }
                for what, work in works.items():
                    times.setdefault((names, what), []).append(seconds(work))
        for what in works:
            few, many = (median(times[names, what]) for names in SIZES)
            print(f"{what:16} of ten names {1e3 * few:8.3f} ms, of 1,000 {1e3 * many:8.3f} ms: {many / few:5.2f} times")
        for store in stores.values():
            store.close()


if __name__ == "__main__":
    main()
