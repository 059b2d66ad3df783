"""The service's gRPC beside an empty grpc.aio echo of the same bytes, over TCP and over a Unix socket, in turns.

    python -m benchmarks.grpc [--seconds 3] [--rounds 5] [--triton PYTHON]

One client process has 16 calls in flight: `tiny` is a 2x2 gather with inline data; `lookup` is 256 int64 indices into a
resident 200,000 x 64 float32 table, 64 KiB out. The echo reads the same request and answers as many bytes. Printed are
calls a second and processor time of a call, medians of the rounds, and the ratio to the echo over the same socket.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks import common, work
from benchmarks.peers.triton_server import MISSING, triton_server

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
IN_FLIGHT: Final = 16
SERVE: Final = [str(Path(sys.executable).with_name("gathernd")), "serve", "--port", "0"]
ECHO: Final = """
import sys, grpc, grpc.aio, uvloop
answer = bytes(int(sys.argv[1]))
async def echo(request, context):
    return answer
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(echo)
async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"unix:{sys.argv[2]}")
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()
uvloop.run(main())
"""


def messages() -> dict[str, bytes]:
    """The requests of both kinds."""
    pb: Any = service_pb2
    tiny = pb.ModelInferRequest(model_name="gathernd")
    tiny.inputs.add(name="data", datatype="FP32", shape=[2, 2])
    tiny.inputs.add(name="indices", datatype="INT64", shape=[2, 2])
    tiny.raw_input_contents.extend([np.arange(4, dtype=np.float32).tobytes(), np.array([[0, 0], [1, 1]]).tobytes()])
    lookup = pb.ModelInferRequest(model_name="items")
    lookup.inputs.add(name="indices", datatype="INT64", shape=[work.PICK, 1])
    lookup.raw_input_contents.append(np.random.default_rng(1).integers(0, work.ROWS, work.PICK).tobytes())
    return {"tiny": tiny.SerializeToString(), "lookup": lookup.SerializeToString()}


async def rate(address: str, message: bytes, seconds: float) -> tuple[float, int]:
    """Calls a second, and the bytes of an answer."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        call: Any = channel.unary_unary(INFER)
        size = len(await call(message))
        end, count = perf_counter() + seconds, 0

        async def ask() -> None:
            nonlocal count
            while perf_counter() < end:
                await call(message)
                count += 1

        begun = perf_counter()
        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
        return count / (perf_counter() - begun), size


def wait_for(log: Path, pattern: str) -> str:
    """What the log says, once it does."""
    for _ in range(1200):
        if found := re.search(pattern, log.read_text()):
            return found[1]
        sleep(0.1)
    raise SystemExit(f"the service does not start:\n{log.read_text()}")


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process, ended politely."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def measure(seconds: float, rounds: int, folder: Path, triton: str | None) -> None:
    """Start the service and an echo for each kind, measure in turns, print."""
    socket_path, log = folder / "service.sock", folder / "log"
    more = [
        "--store-dir",
        str(folder / "store"),
        "--cache-dir",
        common.warm_cache(),
        "--grpc-port",
        "0",
        "--grpc-uds",
        str(socket_path),
    ]
    with running([*SERVE, *more], log) as service:
        port = wait_for(log, r"gRPC on [^ ]*:(\d+)")
        work.upload(int(wait_for(log, r"ready on \S+:(\d+),")), work.table())
        for kind, message in messages().items():
            _, size = uvloop.run(rate(f"127.0.0.1:{port}", message, 1))
            echo_socket, echo_log = folder / f"{kind}.sock", folder / kind
            with running([sys.executable, "-c", ECHO, str(size), str(echo_socket)], echo_log) as echo:
                echo_port = wait_for(echo_log, r"(\d+)")
                turns: dict[str, tuple[str, bytes, int]] = {
                    "gathernd, TCP": (f"127.0.0.1:{port}", message, service.pid),
                    "echo, TCP": (f"127.0.0.1:{echo_port}", message, echo.pid),
                    "gathernd, Unix socket": (f"unix:{socket_path}", message, service.pid),
                    "echo, Unix socket": (f"unix:{echo_socket}", message, echo.pid),
                }
                if triton is not None:
                    turns["Triton, TCP"] = (triton, message, 0)
                print_turns(f"{kind}, {size} bytes out", turns, seconds, rounds)


def print_turns(title: str, turns: dict[str, tuple[str, bytes, int]], seconds: float, rounds: int) -> None:
    """Measure in turns and print a line for each: rate, processor time of its process, ratio to the echo."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    costs: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(rounds):
        for name in list(turns)[:: -1 if turn % 2 else 1]:  # who comes next finds caches that another has left
            address, message, process = turns[name]
            before = common.cpu_seconds(process) if process else 0.0
            found, _ = uvloop.run(rate(address, message, seconds))
            rates[name].append(found)
            costs[name].append(((common.cpu_seconds(process) - before) if process else 0.0) / (found * seconds) * 1e6)
    print(title)
    for name in turns:
        echo = f"echo, {name.partition(', ')[2]}"
        ratio = median(ours / theirs for ours, theirs in zip(rates[name], rates[echo], strict=True))
        spent = f"{median(costs[name]):4.0f} us of CPU" if turns[name][2] else " " * 14
        print(f"  {name:22} {median(rates[name]):8,.0f}/s  {spent}  x echo {ratio:.2f}")


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triton", metavar="PYTHON", help="of an environment with nvidia-pytriton")
    options = parser.parse_args()
    print(common.machine_line())
    with ExitStack() as stack:
        triton = None
        if options.triton:
            port = common.free_port()
            stack.enter_context(triton_server(options.triton, "gathernd", "items", grpc_port=port))
            triton = f"127.0.0.1:{port}"
        else:
            print(MISSING)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gathernd-bench-"))
        measure(options.seconds, options.rounds, Path(folder), triton)


if __name__ == "__main__":
    main()
