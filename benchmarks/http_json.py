"""`POST /gathernd` in JSON: the service beside the bare floor and an hour's work, on the same requests.

python -m benchmarks.http_json [--seconds 5] [--rounds 1] [--work tiny,million,rows] [--servers gathernd,bare,naive]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from benchmarks import common


def _tensor(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.ravel()}


def _request(data: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]) -> common.Request:
    body = {"data": _tensor(data), "indices": _tensor(indices)}
    return common.Request("/gathernd", orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def tiny() -> common.Request:
    """The specification's first example: data [2,2] int32, indices [2,2]."""
    return _request(np.arange(4, dtype=np.int32).reshape(2, 2), np.array([[0, 0], [1, 1]]))


def million() -> common.Request:
    """1,000,000 float32 in, 10,000 tuples of 2, 10,000 values out."""
    rng = np.random.default_rng(9)
    return _request(rng.random((1000, 1000), dtype=np.float32), rng.integers(0, 1000, (10_000, 2)))


def rows() -> common.Request:
    """1,000,000 float32 in and as many out: every row once, shuffled."""
    rng = np.random.default_rng(9)
    return _request(rng.random((1000, 1000), dtype=np.float32), rng.permutation(1000).reshape(1000, 1))


LARGE = 2**20  # bytes of a body from which on a run is four times as long: a slow server answers one a second
WORK: dict[str, Callable[[], common.Request]] = {"tiny": tiny, "million": million, "rows": rows}
SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gathernd": common.gathernd_command,
    "bare": common.uvicorn_command("benchmarks.bare:app"),
    "naive": common.uvicorn_command("benchmarks.naive_app:app"),
}


def _values(answer: bytes) -> np.ndarray[Any, Any]:
    return np.array(orjson.loads(answer)["output"]["values"], dtype=np.float32)


def measure(request: common.Request, servers: list[str], seconds: float, rounds: int) -> dict[str, common.Figures]:
    """The best of `rounds` for each server, taken in turns; the floor answers as many bytes as the first server.

    Servers other than the floor must answer with the same values, or RuntimeError is raised.
    """
    best: dict[str, common.Figures] = {}
    answers: dict[str, bytes] = {}
    for _ in range(rounds):
        for name in servers:
            size = max((len(answer) for answer in list(answers.values())[:1]), default=2)
            with common.serving(SERVERS[name], environ={"BARE_BYTES": str(size)}, limit=120) as port:
                answers.setdefault(name, common.post(port, request))
                if len(request.body) < LARGE:
                    figures = common.wrk(port, request, seconds=seconds)
                else:
                    figures = common.wrk(port, request, seconds=4 * seconds, warm=3)
            if name not in best or figures.rate > best[name].rate:
                best[name] = figures
    real = [_values(answer) for name, answer in answers.items() if name != "bare"]
    if any(not np.array_equal(values, real[0]) for values in real[1:]):
        raise RuntimeError("the servers answer differently")
    return best


def main() -> None:
    """Measure and print one table for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--servers", default=",".join(SERVERS))
    options = parser.parse_args()
    servers = options.servers.split(",")
    print(common.machine_line())
    for work in options.work.split(","):
        request = WORK[work]()
        best = measure(request, servers, options.seconds, options.rounds)
        title = f"\n{work}: {(WORK[work].__doc__ or '').strip()} Body {len(request.body):,} bytes."
        print(common.table(title, best, [name for name in servers if name != "gathernd"]), flush=True)


if __name__ == "__main__":
    main()
