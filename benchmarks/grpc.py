"""The service's gRPC beside an empty grpc.aio echo of the same bytes, in turns on the same machine.

    python -m benchmarks.grpc [--seconds 3] [--rounds 5]

Two kinds of calls from one client process with 16 calls in flight: `tiny` is a 2x2 gather whose data travels along;
`lookup` is 256 int64 indices into a resident 200,000x64 float32 table, 64 KiB out. The echo reads the same request and
answers bytes of the same length. Printed are calls a second, medians of the rounds, and the ratio to the echo.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
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

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
IN_FLIGHT: Final = 16
ROWS, WIDTH, INDICES = 200_000, 64, 256
ECHO: Final = """
import asyncio, sys, grpc, grpc.aio, uvloop
answer = bytes(int(sys.argv[1]))
async def echo(request, context):
    return answer
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(echo)
async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
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
    lookup = pb.ModelInferRequest(model_name="table")
    lookup.inputs.add(name="indices", datatype="INT64", shape=[INDICES, 1])
    lookup.raw_input_contents.append(np.random.default_rng(1).integers(0, ROWS, INDICES).tobytes())
    return {"tiny": tiny.SerializeToString(), "lookup": lookup.SerializeToString()}


async def rate(address: str, message: bytes, seconds: float) -> tuple[float, int]:
    """Calls a second, and the bytes of an answer."""
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
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


def cpu(process: subprocess.Popen[str]) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def wait_for(log: Path, pattern: str) -> str:
    """What the log says, once it does."""
    for _ in range(1200):
        if found := re.search(pattern, log.read_text()):
            return found[1]
        sleep(0.1)
    raise SystemExit(f"the service does not start:\n{log.read_text()}")


def measure(seconds: float, rounds: int, folder: Path) -> None:
    """Start the service and the echoes, measure in turns, print."""
    log = folder / "log"
    command = [str(Path(sys.executable).with_name("gathernd")), "serve", "--port", "0", "--grpc-port", "0"]
    with log.open("w") as file:
        service = subprocess.Popen([*command, "--store-dir", str(folder / "store")], stderr=file, text=True)
    started = [service]
    try:
        port = wait_for(log, r"gRPC on [^ ]*:(\d+)")
        url = wait_for(log, r"ready on (\S+),")
        table = np.random.default_rng(0).random((ROWS, WIDTH), np.float32).tobytes()
        query = f"dtype=float32&shape={ROWS},{WIDTH}"
        headers = {"content-type": "application/octet-stream"}
        httpx.put(f"{url}/tensors/table?{query}", content=table, headers=headers, timeout=60).raise_for_status()
        for kind, message in messages().items():
            _, size = uvloop.run(rate(f"127.0.0.1:{port}", message, 1))
            echo = subprocess.Popen([sys.executable, "-c", ECHO, str(size)], stdout=subprocess.PIPE, text=True)
            started.append(echo)
            assert echo.stdout is not None
            addresses = {"gathernd": (service, port), "echo": (echo, echo.stdout.readline().strip())}
            rates: dict[str, list[float]] = {name: [] for name in addresses}
            costs: dict[str, list[float]] = {name: [] for name in addresses}
            for _ in range(rounds):
                for name, (process, at) in addresses.items():
                    before = cpu(process)
                    found, _ = uvloop.run(rate(f"127.0.0.1:{at}", message, seconds))
                    rates[name].append(found)
                    costs[name].append((cpu(process) - before) / (found * seconds) * 1e6)
            ratio = median(ours / theirs for ours, theirs in zip(rates["gathernd"], rates["echo"], strict=True))
            print(
                f"{kind}, {size} bytes out: gathernd {median(rates['gathernd']):.0f}/s "
                f"({median(costs['gathernd']):.0f} us of CPU), echo {median(rates['echo']):.0f}/s "
                f"({median(costs['echo']):.0f} us of CPU), ratio {ratio:.2f}"
            )
    finally:
        for process in started:
            process.terminate()
            process.wait(30)


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments.seconds, arguments.rounds, Path(folder))


if __name__ == "__main__":
    main()
