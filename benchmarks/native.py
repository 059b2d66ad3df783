"""`POST /gathernd` in the native binary format beside the bare floor, which takes and gives as many bytes.

python -m benchmarks.native [--seconds 5] [--rounds 3] [--work tiny,inline,rows]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from benchmarks import common

SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gathernd": common.gathernd_command,
    "bare": common.uvicorn_command("benchmarks.bare:app"),
}


def tiny() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The specification's first example: data [2,2], indices [2,2]."""
    return np.arange(4, dtype=np.int32).reshape(2, 2), np.array([[0, 0], [1, 1]])


def inline() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """4 MB of float32 in, 10,000 tuples of 2, 10,000 values (40 KB) out."""
    rng = np.random.default_rng(9)
    return rng.random((1000, 1000), dtype=np.float32), rng.integers(0, 1000, (10_000, 2))


def rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """4 MB of float32 in and out: every row once, shuffled."""
    rng = np.random.default_rng(9)
    return rng.random((1000, 1000), dtype=np.float32), rng.permutation(1000).reshape(1000, 1)


WORK: dict[str, Callable[[], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = {
    "tiny": tiny,
    "inline": inline,
    "rows": rows,
}


def measure(work: str, seconds: float, rounds: int) -> tuple[int, dict[str, common.Figures]]:
    """Bytes of the request, and the best of `rounds` of each server, taken in turns.

    The service's answer must be what NumPy gathers, or RuntimeError is raised; the floor answers as many bytes.
    """
    data, indices = WORK[work]()
    body = save({"data": data, "indices": indices})
    request = common.Request("/gathernd", body, {"Content-Type": "application/x-safetensors"})

    def check(answer: bytes) -> None:
        if not np.array_equal(load(answer)["output"], data[tuple(indices.T)]):
            raise RuntimeError("the service answers otherwise than NumPy")

    return len(body), common.best_beside_floor(SERVERS, request, check, seconds=seconds, rounds=rounds)


def main() -> None:
    """Measure and print one table for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", default=",".join(WORK))
    options = parser.parse_args()
    print(common.machine_line())
    for work in options.work.split(","):
        size, best = measure(work, options.seconds, options.rounds)
        title = f"\n{work}: {(WORK[work].__doc__ or '').strip()} Body {size:,} bytes."
        print(common.table(title, best, ["bare"]), flush=True)


if __name__ == "__main__":
    main()
