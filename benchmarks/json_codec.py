"""The native JSON codec beside the libraries that it might have been made of, in one process, without HTTP.

python -m benchmarks.json_codec [--numbers 1000000] [--seconds 1]

The libraries do less: pysimdjson's buffers flatten ragged lists and refuse 1.0 for an integer and "NaN" for a float,
orjson and json end with Python lists that are still to become arrays, and nobody but the codec looks at the shape.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from app import compile_request_functions
from app.formats.json.read_request import read_request
from app.formats.json.write_answer import write_answer
from app.operators.registry import OPERATORS
from app.requests.envelope_cache import envelopes
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from benchmarks import common

TINY = b"""{"data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
 "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
 "batch_dims": 0, "dialect": "onnx-13", "device": "auto", "output_encoding": "values"}"""
INDICES = b',"indices":{"dtype":"int64","shape":[1,1],"values":[0]}}'


def arrays(count: int) -> dict[str, NDArray[Any]]:
    """What is read and written, by a name for it."""
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal(count, np.float32).view(np.complex64)
    return {
        "float32, 0 to 1": rng.random(count, np.float32),
        "float32, normal": rng.standard_normal(count, np.float32),
        "float64, 0 to 1": rng.random(count),
        "float16, normal": rng.standard_normal(count, np.float32).astype(np.float16),
        "int64, 7 digits": rng.integers(0, 1 << 20, count),
        "int64, 19 digits": rng.integers(-(1 << 62), 1 << 62, count),
        "uint8": rng.integers(0, 256, count, np.uint8),
        "bool": rng.integers(0, 2, count).astype(bool),
        "complex64, pairs": pairs,
    }


def best_times(runs: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The shortest time of each, taken in turns for so many seconds each."""
    best: dict[str, float] = {}
    ends = perf_counter() + seconds * len(runs)
    while perf_counter() < ends:
        for name, run in runs.items():
            started = perf_counter()
            run()
            best[name] = min(best.get(name, 9e9), perf_counter() - started)
    return best


def line(title: str, best: dict[str, float], count: int) -> str:
    """Nanoseconds an item, and how the first column compares with the others."""
    first, *_ = best.values()
    cells = [
        f"{name} {time / count * 1e9:6.1f} ns" + f" ({time / first:4.1f}×)" * (time != first)
        for name, time in best.items()
    ]
    return f"  {title:24}" + "  ".join(cells)


def reading(array: NDArray[Any], name: str, nested: bool, seconds: float) -> str:
    """One line on reading `array` out of a request."""
    dtype = DTYPES[array.dtype.name]
    parts = array.view(np.float32).reshape(-1, 2) if dtype.kind == "complex" else array
    rows = parts.reshape(-1, 4) if nested else parts
    values = orjson.dumps(rows.astype(np.float32) if dtype.item_size == 2 else rows, option=orjson.OPT_SERIALIZE_NUMPY)
    shape = f"[{array.size // 4},4]" if nested else f"[{array.size}]"
    body = b'{"data":{"dtype":"%b","shape":%b,"values":%b}' % (dtype.name.encode(), shape.encode(), values) + INDICES
    call, _ = read_request(body, b"", OPERATORS["gathernd"].signature, Limits())
    if not isinstance(call.data, Tensor) or call.data.array.tobytes() != array.tobytes():
        raise RuntimeError(f"{name} reads otherwise than it was written")
    parser: Any = simdjson.Parser()
    kind = "i" if dtype.kind in ("int", "uint") else "d"
    runs: dict[str, Callable[[], object]] = {
        "codec": lambda: read_request(body, b"", OPERATORS["gathernd"].signature, Limits()),
        "pysimdjson": lambda: np.frombuffer(parser.parse(body)["data"]["values"].as_buffer(of_type=kind), "f8").astype(
            "f4"
        ),
        "orjson": lambda: orjson.loads(body),
        "json": lambda: json.loads(body),
    }
    if dtype.kind == "bool":
        del runs["pysimdjson"]  # has no buffers of them
    return line(name + (", nested" if nested else ""), best_times(runs, seconds), array.size)


def writing(array: NDArray[Any], name: str, seconds: float) -> str:
    """One line on writing `array` as an answer."""
    dtype = DTYPES[array.dtype.name]
    answer = Answer({"output": Tensor(dtype, (array.size,), array)}, "onnx-13", "cpu")
    parts = array.view(np.float32).reshape(-1, 2) if dtype.kind == "complex" else array
    listed = parts.tolist()
    runs: dict[str, Callable[[], object]] = {
        "codec": lambda: write_answer(answer, "values"),
        "orjson": lambda: orjson.dumps({"values": parts}, option=orjson.OPT_SERIALIZE_NUMPY),
        "json, of a list": lambda: json.dumps(listed),
    }
    return line(name, best_times(runs, seconds), array.size)


def tiny(seconds: float) -> str:
    """The specification's first example: reading and writing, in microseconds."""
    call, _ = read_request(TINY, b"", OPERATORS["gathernd"].signature, Limits())
    if not isinstance(call.data, Tensor):
        raise TypeError("the data is inline")
    answer, limits, signature = (
        Answer({"output": call.data}, "onnx-13", "cpu"),
        Limits(),
        OPERATORS["gathernd"].signature,
    )
    parser = simdjson.Parser()

    def new_small_part() -> None:
        envelopes.clear()
        read_request(TINY, b"", signature, limits)

    def often(run: Callable[[], object]) -> Callable[[], None]:
        def many() -> None:
            for _ in range(1000):
                run()

        return many

    runs = {
        "codec reads": often(lambda: read_request(TINY, b"", signature, limits)),
        "codec reads a small part that is new": often(new_small_part),
        "codec writes": often(lambda: write_answer(answer, "values")),
        "orjson.loads": often(lambda: orjson.loads(TINY)),
        "simdjson.parse": often(lambda: parser.parse(TINY)),
        "json.loads": often(lambda: json.loads(TINY)),
    }
    return "  " + ", ".join(f"{name} {time * 1e3:.2f} µs" for name, time in best_times(runs, seconds).items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    print(common.machine_line())
    np.seterr(all="ignore")  # pysimdjson's integers pass for floats: only their time counts
    with TemporaryDirectory() as folder:
        compile_request_functions.configure(Path(folder))
        started = perf_counter()
        compile_request_functions.warm()
        print(f"compiled without a cache in {perf_counter() - started:.2f} s")
    print(f"tiny request of {len(TINY)} bytes:\n{tiny(options.seconds)}")
    made = arrays(options.numbers)
    print(f"reading {options.numbers:,} numbers, time each:")
    for name, array in made.items():
        print(reading(array, name, nested=False, seconds=options.seconds), flush=True)
    for name in ("float32, 0 to 1", "int64, 7 digits"):
        print(reading(made[name], name, nested=True, seconds=options.seconds), flush=True)
    print(f"writing {options.numbers:,} numbers, time each:")
    for name, array in made.items():
        print(writing(array, name, options.seconds), flush=True)


if __name__ == "__main__":
    main()
