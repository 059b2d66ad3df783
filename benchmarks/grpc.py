"""The service's gRPC beside an empty grpc.aio echo of the same bytes, over TCP and over a Unix socket, in turns.

    python -m benchmarks.grpc [--seconds 3] [--rounds 5] [--triton ADDRESS] [--http]

Two kinds of calls from one client process with 16 calls in flight: `tiny` is a 2x2 gather whose data travels along;
`lookup` is 256 int64 indices into a resident 200,000x64 float32 table, 64 KiB out. The echo reads the same request and
answers bytes of the same length. Printed are calls a second and processor time of a call, medians of the rounds, and
the ratio to the echo over the same socket. `--triton` names a running Triton whose models `floats` and `lookup` do the
same work. With `--http` it measures HTTP instead, driven by wrk: of a service without gRPC, and of one with it, idle.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final

import grpc
import grpc.aio
import httpx
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks import common, peers

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
IN_FLIGHT: Final = 16
ROWS, WIDTH, INDICES = 200_000, 64, 256
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


def messages(tiny_model: str, lookup_model: str) -> dict[str, bytes]:
    """The requests of both kinds, to these models."""
    pb: Any = service_pb2
    tiny = pb.ModelInferRequest(model_name=tiny_model)
    tiny.inputs.add(name="data", datatype="FP32", shape=[2, 2])
    tiny.inputs.add(name="indices", datatype="INT64", shape=[2, 2])
    tiny.raw_input_contents.extend([np.arange(4, dtype=np.float32).tobytes(), np.array([[0, 0], [1, 1]]).tobytes()])
    lookup = pb.ModelInferRequest(model_name=lookup_model)
    lookup.inputs.add(name="indices", datatype="INT64", shape=[INDICES, 1])
    lookup.raw_input_contents.append(np.random.default_rng(1).integers(0, ROWS, INDICES).tobytes())
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


def upload(url: str) -> None:
    """Make the tables resident."""
    table = np.random.default_rng(0).random((ROWS, WIDTH), np.float32).tobytes()
    query = {"dtype": "float32", "shape": f"{ROWS},{WIDTH}"}
    headers = {"content-type": "application/octet-stream"}
    httpx.put(f"{url}/tensors/items", params=query, content=table, headers=headers, timeout=60).raise_for_status()


def measure(seconds: float, rounds: int, folder: Path, triton: str | None) -> None:
    """Start the service and an echo for each kind, measure in turns, print."""
    socket_path, log = folder / "service.sock", folder / "log"
    more = ["--store-dir", str(folder / "store"), "--grpc-port", "0", "--grpc-uds", str(socket_path)]
    with running([*SERVE, *more], log) as service:
        port = wait_for(log, r"gRPC on [^ ]*:(\d+)")
        upload(wait_for(log, r"ready on (\S+),"))
        for kind, message in messages("gathernd", "items").items():
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
                    turns["Triton, TCP"] = (triton, messages("floats", "lookup")[kind], 0)
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


def measure_http(seconds: float, rounds: int, folder: Path) -> None:
    """HTTP of two services, one of which has gRPC that nobody calls, in turns; and the first in the place of both."""
    kinds = {name: request for name, way, request in peers.work() if way == "native" and "4 MB" not in name}
    extra: dict[str, list[str]] = {"off": [], "off again": [], "on, idle": ["--grpc-port", "0"]}
    with ExitStack() as opened:
        ports: dict[str, int] = {}
        for number, (name, flags) in enumerate(extra.items()):
            log = folder / f"log{number}"
            opened.enter_context(running([*SERVE, "--store-dir", str(folder / str(number)), *flags], log))
            url = wait_for(log, r"ready on (\S+),")
            ports[name] = int(url.rpartition(":")[2])
            upload(url)
        for kind, request in kinds.items():
            rates: dict[str, list[float]] = {name: [] for name in ports}
            for turn in range(rounds):
                order: Callable[[Any], Any] = reversed if turn % 2 else iter
                for name in order(list(ports)):
                    rates[name].append(common.wrk(ports[name], request, seconds=seconds).rate)
            for name in ports:
                ratio = median(ours / theirs for ours, theirs in zip(rates[name], rates["off"], strict=True))
                print(f"{kind:14} gRPC {name:10} {median(rates[name]):8,.0f}/s  x off {ratio:.3f}")


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triton", metavar="ADDRESS")
    parser.add_argument("--http", action="store_true")
    arguments = parser.parse_args()
    print(common.machine_line())
    with tempfile.TemporaryDirectory() as folder:
        if arguments.http:
            measure_http(arguments.seconds, arguments.rounds, Path(folder))
        else:
            measure(arguments.seconds, arguments.rounds, Path(folder), arguments.triton)


if __name__ == "__main__":
    main()
