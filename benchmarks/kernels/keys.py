"""The index of keys beside pandas, NumPy and a dict: the cost of a probe, and the cache lines that it reads.

Times are nanoseconds of processor time a probe, on one thread; contenders take turns, and the best round counts. Cache
lines are those of the buckets that a search reads: in a full index, and after each key was replaced by another.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import compile_request_functions
from app.keys.index_layout import LINE, ROW_MASK, WORDS
from app.keys.key_column import KeyColumn
from app.keys.key_index import KeyIndex, build, find, hash_keys, new_seed
from benchmarks.common import ROOT

_PANDAS = """
import sys, time, numpy as np, pandas as pd
keys, probes = np.load(sys.argv[1]), np.load(sys.argv[2])
index = pd.Index(keys)
index.get_indexer(probes[:1])
print("ready", flush=True)
for _ in sys.stdin:
    before = time.thread_time()
    rows = index.get_indexer(probes)
    print(time.thread_time() - before, int((rows < 0).sum()), flush=True)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--probes", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pandas", type=Path, default=ROOT / ".venv-docs/bin/python")


def run(options: argparse.Namespace) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        compile_request_functions.configure(Path(folder))
        compile_request_functions.warm()
        random = np.random.default_rng(1)
        many = random.permutation(np.unique(random.integers(-(2**63), 2**63 - 1, 2 * options.keys)))
        keys, others = many[: options.keys], many[options.keys :]
        column = KeyColumn.integers(keys)
        before = thread_time()
        index, _ = build(column, new_seed())
        print(f"built in {(thread_time() - before) / options.keys * 1e9:.0f} ns a key")
        for kind, among in (("hits", keys), ("misses", others)):
            probes = among[random.integers(0, len(among), options.probes)]
            compare(kind, index, column, probes, options, Path(folder))
    strings(options, random)
    count_lines(index, column, random)


def compare(
    kind: str, index: KeyIndex, column: KeyColumn, probes: NDArray[np.int64], options: Any, folder: Path
) -> None:
    """Print what probes cost in each contender."""
    search_keys = index.search(column, KeyColumn.integers(probes))
    order = np.argsort(column.keys)
    in_order = column.keys[order]
    few = probes[: len(probes) // 10].tolist()
    rows = dict(zip(column.keys.tolist(), range(len(column)), strict=True))

    def search() -> None:
        at = np.minimum(np.searchsorted(in_order, probes), len(order) - 1)
        np.where(in_order[at] == probes, order[at], -1)

    contenders: dict[str, Callable[[], float]] = {
        "gathernd": lambda: timed(lambda: find([search_keys], [-1])) / len(probes),
        "NumPy searchsorted": lambda: timed(search) / len(probes),
        "dict": lambda: timed(lambda: [rows.get(key, -1) for key in few]) / len(few),
    }
    with pandas(options.pandas, column.keys, probes, folder) as peer:
        if peer is not None:
            contenders["pandas get_indexer"] = lambda: peer() / len(probes)
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(options.rounds):
            for name, run in contenders.items():
                best[name] = min(best[name], run())
    print(f"\n{kind}, {len(column):,} keys", *(f"{name:20} {best[name] * 1e9:7.1f} ns" for name in best), sep="\n")
    print(*(f"{best[name] / best['gathernd']:.1f} x {name}" for name in best if name != "gathernd"), sep=", ")


def timed(call: Callable[[], object]) -> float:
    """Seconds of processor time that a call takes."""
    before = thread_time()
    call()
    return thread_time() - before


@contextmanager
def pandas(
    python: Path, keys: NDArray[Any], probes: NDArray[Any], folder: Path
) -> Iterator[Callable[[], float] | None]:
    """Seconds that pandas takes for the probes, each time it is called; None if there is no pandas."""
    if not python.exists():
        print(f"pandas is left out: {python} is not installed")
        yield None
        return
    for name, array in (("keys", keys), ("probes", probes)):
        np.save(folder / f"{name}.npy", array)
    command = [str(python), "-c", _PANDAS, str(folder / "keys.npy"), str(folder / "probes.npy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        def run() -> float:
            print("run", file=given, flush=True)
            return float(told.readline().split()[0])

        yield run if told.readline() == "ready\n" else None
        given.close()


def strings(options: Any, random: np.random.Generator) -> None:
    """Print what probes for strings cost, a tenth as many of a tenth as many keys."""
    keys = [f"user:{number:x}" for number in random.permutation(options.keys // 10)]
    column = KeyColumn.of_strings(keys)
    index, _ = build(column, new_seed())
    numbers = random.integers(0, len(keys), options.probes // 10)
    asked = [keys[number] for number in numbers.tolist()]
    search = index.search(column, KeyColumn.of_strings(asked))
    rows = dict(zip(keys, range(len(keys)), strict=True))
    ours = min(timed(lambda: find([search], [-1])) for _ in range(options.rounds))
    theirs = min(timed(lambda: [rows[key] for key in asked]) for _ in range(options.rounds))
    assert (search.rows == numbers).all()
    print(
        f"\nhits, {len(keys):,} strings\ngathernd {ours / len(asked) * 1e9:.1f} ns, dict {theirs / ours:.1f} x as much"
    )


def count_lines(index: KeyIndex, column: KeyColumn, random: np.random.Generator) -> None:
    """Print how many cache lines of the index a hit and a miss read."""
    buckets = len(index.buffer) // LINE - 1
    load = len(column) / buckets / (WORDS - 1)
    misses = random.integers(-(2**63), 2**63 - 1, 1_000_000)
    print(f"\n{len(index.buffer) / len(column):.2f} bytes of the index a key, load {load:.3f}")
    for state in ("as built", "after replacing"):
        mean, most = lines_of_hits(index, column)
        print(f"{state}: {mean:.3f} lines a hit (most {most}), {lines_of_misses(index, misses):.3f} a miss")
        if state == "as built":
            replace_keys(index, column, random)


def replace_keys(index: KeyIndex, column: KeyColumn, random: np.random.Generator) -> None:
    """Remove and insert a hundredth of the rows at a time, as many as there are, each with a new key."""
    count = max(len(column) // 100, 1)
    for _ in range(100):
        rows = random.choice(len(column), count, replace=False)
        assert index.remove(column, rows) == count
        column.keys[rows] = random.integers(-(2**63), 2**63 - 1, count)
        for row in np.sort(rows).tolist():
            index.insert(column, row, row + 1)


def homes(hashes: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    """The upper 64 bits of each hash times the number of buckets."""
    low, high = hashes & np.uint64(2**32 - 1), hashes >> np.uint64(32)
    count = np.uint64(buckets)
    return ((high * count + (low * count >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def lines_of_hits(index: KeyIndex, column: KeyColumn) -> tuple[float, int]:
    """The mean and the most buckets from a key's home to its entry."""
    words = index.buffer[LINE:].view("<u8").reshape(-1, WORDS)
    rows = (words[:, 1:] & np.uint64(ROW_MASK)).astype(np.int64) - 1
    buckets, entries = np.nonzero(rows >= 0)
    at = np.empty(len(column), np.int64)
    at[rows[buckets, entries]] = buckets
    lines = (at - homes(hash_keys(column, index.seed()), len(words))) % len(words) + 1
    return float(lines.mean()), int(lines.max())


def lines_of_misses(index: KeyIndex, keys: NDArray[np.int64]) -> float:
    """The mean of the buckets from a key's home to the first that no key has passed."""
    passed = index.buffer[LINE:].view("<u8").reshape(-1, WORDS)[:, 0] > 0
    at = homes(hash_keys(KeyColumn.integers(keys), index.seed()), len(passed))
    lines = 0
    while len(at):
        lines += len(at)
        at = (at[passed[at]] + 1) % len(passed)
    return lines / len(keys)
