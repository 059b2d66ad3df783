"""What the benchmarks share: the command line, a server on a free loopback port, wrk to drive it, a table with ratios.

wrk runs one thread and 16 connections, so that server and client have a core each on a machine with two.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol

from tests.free_port import free_port

__all__ = ["free_port"]
ROOT = Path(__file__).parents[1]
JSON = "application/json"
ENDPOINT = "benchmarks.peers.bytes_endpoint:app"
"""The floor, for `uvicorn_command`; it is ready when `/0` answers."""


class Part(Protocol):
    """What a benchmark can measure: a module whose docstring says what its tables show."""

    __doc__: str | None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the part's options."""

    def run(self, options: argparse.Namespace) -> None:
        """Measure and print."""


def main(program: str, doc: str | None, parts: Mapping[str, Part]) -> None:
    """Run the part that the command line names."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m benchmarks.{program}", description=doc, formatter_class=style)
    commands = parser.add_subparsers(dest="part", required=True)
    for name, part in parts.items():
        head = (part.__doc__ or "").partition("\n")[0]
        part.add_options(commands.add_parser(name, help=head, description=part.__doc__, formatter_class=style))
    options = parser.parse_args()
    print(machine_line(), flush=True)
    parts[options.part].run(options)


@cache
def warm_cache() -> str:
    """A folder with all that is compiled: GATHERND_CACHE_DIR, or a temporary one that is filled when first asked for.

    What a service compiles beside its first requests would count in their times.
    """
    folder = os.environ.get("GATHERND_CACHE_DIR")
    if folder is None:
        folder = tempfile.mkdtemp(prefix="gathernd-bench-cache-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warm = [gathernd_command(0)[0], "warm", "--cache-dir", folder]
    subprocess.run(warm, check=True, stdout=subprocess.DEVNULL)
    return folder


def gathernd_command(port: int) -> list[str]:
    """The service under test, of this checkout."""
    return [str(Path(sys.executable).with_name("gathernd")), "serve", "--host", "127.0.0.1", "--port", str(port)]


def uvicorn_command(application: str) -> Callable[[int], list[str]]:
    """One uvicorn process of `application`, quiet, as a function of the port."""
    return lambda port: [
        *(sys.executable, "-m", "uvicorn", application, "--host", "127.0.0.1", "--port", str(port)),
        *("--log-level", "warning", "--no-access-log", "--no-server-header"),
    ]


def get_status(port: int, path: str) -> int | None:
    """The status of a GET, None if nothing answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


@contextmanager
def serving(
    command: Callable[[int], list[str]],
    *,
    environ: Mapping[str, str] | None = None,
    ready: str = "/readyz",
    limit: float = 180,
    pause: float = 0.05,
    cwd: Path = ROOT,
) -> Iterator[int]:
    """Run `command(port)` in `cwd` until `ready` answers 200, yield the port, and end the process group.

    The store is a fresh temporary folder, and the cache that of `warm_cache`, unless `environ` names them. Raises
    RuntimeError with the end of the server's output if it ends early or is not ready within `limit` seconds.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        log = Path(folder) / "log"
        own = {"GATHERND_STORE_DIR": f"{folder}/store", **(environ or {})}
        if "GATHERND_CACHE_DIR" not in own:
            own["GATHERND_CACHE_DIR"] = warm_cache()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command(port), cwd=cwd, env=os.environ | own, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        try:
            until = time.monotonic() + limit
            while get_status(port, ready) != 200:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{command(port)} is not ready:\n{log.read_text(errors='replace')[-4000:]}")
                time.sleep(pause)
            yield port
            if process.poll() is not None:
                raise RuntimeError(f"{command(port)} ended:\n{log.read_text(errors='replace')[-4000:]}")
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            print(f"process {process.pid} did not end within 20 s of SIGTERM", file=sys.stderr)
    with suppress(ProcessLookupError):  # nothing of the group is left, as it should be
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cpu_seconds(process: int) -> float:
    """Seconds of the processors that a process has had, to the nanosecond: by clock_getcpuclockid(3)."""
    return time.clock_gettime(~process << 3 | 2)


def processes(port: int) -> list[int]:
    """The processes that were started with `--port` last, and their workers."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().endswith(f"--port\0{port}\0".encode()):
                found.append(int(folder.name))
    return found + [process for process, parent in parents.items() if parent in found and process not in found]


def processor_time(port: int) -> float:
    """Seconds of the processors that the processes of a service have had."""
    spent = 0.0
    for process in processes(port):
        with suppress(OSError):  # it has ended meanwhile
            spent += cpu_seconds(process)
    return spent


@dataclass(frozen=True, slots=True)
class Request:
    """One piece of work: a request that is sent again and again."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})
    method: str = "POST"


def post(port: int, request: Request) -> bytes:
    """Send `request` once and return the answer's body; raises RuntimeError unless it is 200, or 201 for a PUT."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request.method, request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status not in ((200, 201) if request.method == "PUT" else (200,)):
        raise RuntimeError(f"{request.method} {request.path} answered {answer.status}: {body[:500]!r}")
    return body


@dataclass(frozen=True, slots=True)
class Figures:
    """What wrk saw: requests a second, milliseconds at two quantiles, failures of any kind, of how many requests."""

    rate: float
    p50: float
    p99: float
    errors: int
    requests: int


_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "{method}"
wrk.body = file:read("*a")
file:close()
{headers}
{more}
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("FIGURES %f %f %f %d %d\\n", summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    e.connect + e.read + e.write + e.status + e.timeout, summary.requests))
end
"""


def wrk(
    port: int, request: Request, *, seconds: float = 5, connections: int = 16, warm: int = 20, script: str = ""
) -> Figures:
    """Drive `request` with one thread of wrk, after `warm` requests that do not count; `script` is more Lua for wrk."""
    program = shutil.which("wrk")
    if program is None:
        raise SystemExit("wrk is needed: the Debian package wrk")
    for _ in range(warm):
        post(port, request)
    with tempfile.TemporaryDirectory(prefix="gathernd-wrk-") as folder:
        body, file = Path(folder) / "body", Path(folder) / "script.lua"
        body.write_bytes(request.body)
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items())
        file.write_text(_SCRIPT.format(body=body, method=request.method, headers=headers, more=script))
        url = f"http://127.0.0.1:{port}{request.path}"
        limits = [f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "60s"]
        command = [program, "-t1", *limits, "-s", str(file), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=True)
    match = re.search(r"FIGURES (\S+) (\S+) (\S+) (\d+) (\d+)", done.stdout)
    if match is None:
        raise RuntimeError(f"wrk printed no figures:\n{done.stdout}\n{done.stderr}")
    return Figures(float(match[1]), float(match[2]), float(match[3]), int(match[4]), int(match[5]))


def halves(together: bool = False) -> tuple[set[int], set[int]]:
    """The processors of a service and those of what drives it, so that neither takes the other's; all with `together`,
    and where there is one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if together or len(cores) < 2:
        return set(cores), set(cores)
    half = len(cores) // 2
    return set(cores[:half]), set(cores[half:])


def on(cores: set[int]) -> list[str]:
    """What a command begins with that is to run on `cores`."""
    return ["taskset", "--cpu-list", ",".join(map(str, sorted(cores)))]


def machine_line() -> str:
    """CPU, cores that this process may use, Python, date: what a figure needs beside it."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)):
        model = match[1]
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {today}"


def table(title: str, rows: Mapping[str, Figures], baselines: Sequence[str]) -> str:
    """`rows` aligned, each with its rate over that of every baseline."""
    head = ["", "requests/s", "p50 ms", "p99 ms", "errors", *(f"× {name}" for name in baselines)]
    lines = [head]
    for name, figures in rows.items():
        ratios = [f"{figures.rate / rows[base].rate:.2f}" if rows[base].rate else "–" for base in baselines]
        plain = [f"{figures.rate:,.1f}", f"{figures.p50:.2f}", f"{figures.p99:.2f}", str(figures.errors)]
        lines.append([name, *plain, *ratios])
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        [title, *("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)]
    )


def better(best: dict[str, Figures], name: str, figures: Figures) -> None:
    """Keep the better of two measurements."""
    if name not in best or figures.rate > best[name].rate:
        best[name] = figures
