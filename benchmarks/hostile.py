"""What hostile bodies cost a tiny request that comes beside them.

python -m benchmarks.hostile [--size 60000] [--seconds 20] [--connections 4]

Bodies of `benchmarks.costly_bodies` go to a server over some connections without a pause, while one more asks for the
specification's first example again and again: first without the others, as a measure of the machine, then beside plain
bodies, beside the same in every content coding, and beside small bodies that inflate to `BOMB` bytes.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.synchronize import Event, Semaphore
from time import monotonic, perf_counter

from benchmarks import common
from benchmarks.costly_bodies import MAKERS, bombs
from benchmarks.costly_operator_bodies import MAKERS as OPERATOR_MAKERS
from benchmarks.read_body import CODINGS, Body

TINY = b'{"data":{"dtype":"float32","values":[[0,1],[2,3]]},"indices":{"dtype":"int64","values":[[0,0],[1,1]]}}'
ALL_MAKERS = MAKERS | OPERATOR_MAKERS
GROUPS = ("values", "single", "base64", "fields", "binary", *OPERATOR_MAKERS)
BOMB = 1_000_000
_PATHS = {
    "native": "/gathernd",
    "elements": "/scatter_elements",
    "backward": "/gathernd/backward",
    "lookup": "/lookup",
    "v2": "/v2/models/gathernd/infer",
    "v2 elements": "/v2/models/scatter_elements/infer",
    "v2 lookup": "/v2/models/lookup/infer",
    "safetensors": "/gathernd",
    "safetensors elements": "/scatter_elements",
    "safetensors backward": "/gathernd/backward",
    "safetensors lookup": "/lookup",
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One request."""

    path: str
    content: bytes
    fields: dict[str, str]


def requests(made: Iterable[Body], coding: str | None = None) -> list[Sent]:
    """Those of the bodies that a route of the data plane takes, in a content coding of `CODINGS`."""
    encoding, compress = CODINGS[coding] if coding else (b"", bytes)
    found = []
    for body in made:
        if body.codec not in _PATHS:
            continue
        fields = {"Content-Type": "application/x-safetensors" if body.codec.startswith("safetensors") else common.JSON}
        if body.json_size is not None:
            fields["Inference-Header-Content-Length"] = str(body.json_size)
        if coding:
            fields["Content-Encoding"] = encoding.decode()
        found.append(Sent(_PATHS[body.codec], compress(body.content), fields))
    return found


def plain(size: int) -> list[Sent]:
    """Every hostile body of about `size` bytes."""
    return requests(body for group in GROUPS for body in ALL_MAKERS[group](size))


def compressed(size: int) -> list[Sent]:
    """The same in every content coding, in a random order."""
    made = [body for group in GROUPS for body in ALL_MAKERS[group](size)]
    found = [sent for coding in CODINGS for sent in requests(made, coding)]
    random.Random(7).shuffle(found)
    return found


def post(connection: http.client.HTTPConnection, sent: Sent) -> None:
    """Send one and read the answer, whatever it is."""
    connection.request("POST", sent.path, sent.content, sent.fields)
    connection.getresponse().read()


def attack(port: int, made: list[Sent], begun: Semaphore, stop: Event) -> None:
    """Send all of them, over and over, until `stop`; `begun` is released after the first."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        post(connection, made[0])
        begun.release()
        for sent in cycle(made):
            if stop.is_set():
                break
            post(connection, sent)


@contextmanager
def attacked(port: int, made: list[Sent], connections: int) -> Iterator[None]:
    """Meanwhile so many processes send these bodies, each over a connection of its own."""
    context = multiprocessing.get_context("spawn")
    begun, stop = context.Semaphore(0), context.Event()
    share = [made[number::connections] for number in range(connections)]
    others = [context.Process(target=attack, args=(port, some, begun, stop), daemon=True) for some in share]
    for other in others:
        other.start()
    try:
        for _ in others:
            if not begun.acquire(timeout=60):
                raise TimeoutError("no answer to what is sent beside")
        yield
        if not all(other.is_alive() for other in others):
            raise RuntimeError("what is sent beside has ended before")
    finally:
        stop.set()
        for other in others:
            other.join(30)


def latencies(port: int, seconds: float) -> list[float]:
    """Milliseconds of tiny requests, one after the other."""
    tiny = Sent("/gathernd", TINY, {"Content-Type": common.JSON})
    times = []
    end = monotonic() + seconds
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        while monotonic() < end:
            begun = perf_counter()
            post(connection, tiny)
            times.append((perf_counter() - begun) * 1e3)
    return times


def line(title: str, times: Iterable[float]) -> str:
    """Quantiles of some latencies."""
    ordered = sorted(times)
    cells = [f"p{100 * share:g} {ordered[int(share * (len(ordered) - 1))]:7.2f} ms" for share in (0.5, 0.99, 0.999, 1)]
    return f"  {title:42}{'  '.join(cells)}  ({len(ordered)} requests)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args()
    print(common.machine_line())
    beside = {
        f"beside bodies of {options.size} bytes": plain(options.size),
        "beside the same, compressed": compressed(options.size),
        f"beside bodies inflated to {BOMB} bytes": [
            sent for coding in CODINGS for sent in requests(bombs(BOMB), coding)
        ],
    }
    with common.serving(common.gathernd_command, limit=180) as port:
        print(line("tiny requests alone", latencies(port, options.seconds)), flush=True)
        for title, sent in beside.items():
            with attacked(port, sent, options.connections):
                print(line(title, latencies(port, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
