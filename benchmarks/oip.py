"""The inference protocol beside the bare floor, which takes and gives as many bytes.

python -m benchmarks.oip [--seconds 5] [--rounds 3] [--work tiny-json,tiny-binary,inline,rows,lookup-json,lookup-binary]
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common

SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gathernd": common.gathernd_command,
    "bare": common.uvicorn_command("benchmarks.bare:app"),
}
SIZE = "Inference-Header-Content-Length"
Array = NDArray[Any]
Work = tuple[common.Request, Array]
DATATYPES = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}
RNG = np.random.default_rng(9)
TABLE = RNG.random((200_000, 64), np.float32)
PICK = RNG.integers(0, len(TABLE), (256, 1))
MATRIX = RNG.random((1000, 1000), np.float32)


def request(model: str, inputs: dict[str, Array], binary: bool) -> common.Request:
    """An infer request, of which inputs and output are both in binary or both in JSON."""
    described, raws = [], []
    for name, array in inputs.items():
        one: dict[str, Any] = {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": array.shape}
        if binary:
            raws.append(array.tobytes())
            one["parameters"] = {"binary_data_size": array.nbytes}
        else:
            one["data"] = array.reshape(-1).tolist()
        described.append(one)
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": binary}}).encode()
    path = f"/v2/models/{model}/infer"
    return common.Request(path, b"".join((head, *raws)), {SIZE: str(len(head))} if binary else {})


def gathernd(data: Array, indices: Array, binary: bool) -> Work:
    """Data in the request."""
    return request("gathernd", {"data": data, "indices": indices}, binary), data[tuple(indices.T)]


def tiny(binary: bool) -> Work:
    """The specification's first example: data [2,2], indices [2,2]."""
    return gathernd(np.arange(4, dtype=np.int32).reshape(2, 2), np.array([[0, 0], [1, 1]]), binary)


def lookup(binary: bool) -> Work:
    """256 indices into a resident float32 table of 200,000 × 64, 64 KiB out."""
    return request("table", {"indices": PICK}, binary), TABLE[PICK[:, 0]]


WORK: dict[str, Callable[[], Work]] = {
    "tiny-json": lambda: tiny(False),
    "tiny-binary": lambda: tiny(True),
    "inline": lambda: gathernd(MATRIX, RNG.integers(0, 1000, (10_000, 2)), True),
    "rows": lambda: gathernd(MATRIX, RNG.permutation(1000).reshape(1000, 1), True),
    "lookup-json": lambda: lookup(False),
    "lookup-binary": lambda: lookup(True),
}


def upload(port: int) -> None:
    """Make the table resident."""
    file = io.BytesIO()
    np.save(file, TABLE)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("PUT", "/tensors/table", file.getvalue(), {"Content-Type": "application/x-npy"})
    answer = connection.getresponse()
    if answer.status != 201:
        raise RuntimeError(f"PUT /tensors/table answered {answer.status}: {answer.read()!r}")
    connection.close()


def values(answer: bytes, expected: Array, binary: bool) -> Array:
    """The output of an answer."""
    if binary:
        return np.frombuffer(answer[len(answer) - expected.nbytes :], expected.dtype).reshape(expected.shape)
    return np.array(json.loads(answer)["outputs"][0]["data"], expected.dtype).reshape(expected.shape)


def measure(work: str, seconds: float, rounds: int) -> tuple[int, dict[str, common.Figures]]:
    """Bytes of the request, and the best of `rounds` of each server, taken in turns.

    The service's answer must be what NumPy gathers, or RuntimeError is raised; the floor answers as many bytes.
    """
    asked, expected = WORK[work]()

    def check(answer: bytes) -> None:
        if not np.array_equal(values(answer, expected, SIZE in asked.headers), expected):
            raise RuntimeError("the service answers otherwise than NumPy")

    def prepare(port: int) -> None:
        if "/table/" in asked.path:
            upload(port)

    best = common.best_beside_floor(SERVERS, asked, check, seconds=seconds, rounds=rounds, prepare=prepare)
    return len(asked.body), best


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
        print(common.table(f"\n{work}: body {size:,} bytes.", best, ["bare"]), flush=True)


if __name__ == "__main__":
    main()
