"""`gathernd bench`: a real run, what it prints, and that its server and its folder are gone however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from app import __version__
from app.cli import bench_command, bench_kernels, bench_requests, bench_server, calibrate_command
from app.cli.bench_requests import Work
from app.cli.bench_server import BenchFailed
from app.dispatch.backend_cost_model import TYPICAL, GpuCoefficients
from app.dispatch.choose_backend import BackendChooser, Facts
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import numpy_cpu
from app.memory.budget import Budget
from app.services.service import Service
from app.store import EmptyStore
from app.tensors.shape_limits import Limits
from gathernd_cli.command_line import app

BENCH = (sys.executable, "-m", "app.cli", "bench")
SECONDS = "0.02"
REQUESTS = [
    "2×2 example, JSON",
    "lookup of 256 rows of 64, JSON",
    "lookup of 256 rows of 64, binary",
    "4 MB and 10,000 tuples inline, binary",
]


class Bench:
    """A run of the command, with a folder of its own for what is temporary."""

    def __init__(self, cache_dir: Path, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
        # Were the first taken over, the upload of the table would be refused.
        settings = {"GATHERND_MAX_UPLOAD_BYTES": "1000", "GATHERND_DEVICE": "cpu"}
        # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                [*BENCH, "--seconds", SECONDS, "--cache-dir", str(cache_dir), *arguments],
                env={**variables, **settings, "TMPDIR": str(self.temporary)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def servers(self) -> list[int]:
        """The processes whose command names the temporary folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if os.fsencode(self.temporary) in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended in the meantime
                continue
        return found

    def output(self) -> str:
        """What is printed by a run that must succeed."""
        out, progress = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, progress
        assert all(f"gathernd bench: {name}\n" in progress for name in REQUESTS)
        return out

    def assert_nothing_is_left(self) -> None:
        assert self.servers() == []
        assert list(self.temporary.iterdir()) == []

    def kill(self) -> None:
        """End what a test that failed has left."""
        for process in self.servers():
            os.kill(process, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_bench(warmed: Path, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Starts a run with these arguments; a test starts one."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Bench:
            bench = Bench(warmed, tmp_path, *arguments)
            stack.callback(bench.kill)
            return bench

        yield start


def tables(text: str) -> list[list[list[str]]]:
    """The cells of the Markdown tables, of their body only."""
    found = []
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            assert re.fullmatch(r"[|:-]+", lines[1])
            found.append([[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]])
            assert {len(row) for row in found[-1]} == {lines[0].count("|") - 1}
    return found


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def test_it_prints_tables_of_requests_kernels_and_crossovers(start_bench: Callable[..., Bench]) -> None:
    bench = start_bench()
    text = bench.output()
    header = text.splitlines()[0]
    assert re.match(rf"20[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}, gathernd {re.escape(__version__)}, ", header)
    assert f"NumPy {np.__version__}, kernel numba, GATHERND_DEVICE=cpu" in header
    requests, kernels, crossovers = tables(text)
    assert [row[0] for row in requests] == REQUESTS
    for _, rate, p50, p99, client in requests:
        assert number(rate) > 0
        assert 0 < number(p50) <= number(p99)
        assert number(client) > 0
    assert [row[0] for row in kernels] == [each.name for each in bench_kernels.SHAPES]
    for _, threads, ours, numpys, ratio in kernels:
        assert int(threads) >= 1
        assert min(number(ours), number(numpys), number(ratio)) > 0
    assert crossovers[0][:3] == ["event loop", "in memory", "1"]
    assert "Asked by one thread of Python" in text
    assert "GPU: this service uses no GPU" in text
    bench.assert_nothing_is_left()


@pytest.mark.slow
def test_in_json_it_prints_the_same_numbers(start_bench: Callable[..., Bench]) -> None:
    bench = start_bench("--json")
    found = json.loads(bench.output())
    assert found["gathernd"] == __version__
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["settings"] == {"GATHERND_DEVICE": "cpu"}
    assert [row["work"] for row in found["requests"]] == REQUESTS
    for row in found["requests"]:
        assert 0 < row["p50_us"] <= row["p99_us"]
        # Each of the connections waits for the one server: a second holds no more than the client has time for.
        assert 0 < row["requests_per_s"] * row["client_us"] <= 1.1e6
    for row in found["kernels"]:
        assert row["ratio"] == pytest.approx(row["numpy_us"] / row["gathernd_us"])
    rows = [row["from_rows"] for row in found["crossovers"]]
    assert rows[0] == 1
    assert rows == sorted(rows)
    assert [tables("\n".join(bench_command.markdown(found)))[0][0][0]] == REQUESTS[:1]
    bench.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        pytest.param(signal.SIGINT, 130, REQUESTS[0], marks=pytest.mark.slow),
        (signal.SIGTERM, 143, "starting a server"),
    ],
    ids=["SIGINT while it measures", "SIGTERM while its server starts"],
)
def test_a_signal_ends_it_and_its_server(
    start_bench: Callable[..., Bench], number: signal.Signals, code: int, moment: str
) -> None:
    bench = start_bench("--seconds", "60")
    assert bench.process.stderr is not None
    end = monotonic() + 60
    while moment not in bench.process.stderr.readline():
        assert monotonic() < end
    while len(bench.servers()) == 0:
        assert monotonic() < end
        sleep(0.01)
    sleep(0.05)
    bench.process.send_signal(number)
    bench.process.communicate(timeout=60)
    assert bench.process.returncode == code
    bench.assert_nothing_is_left()


def bench_in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> Any:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return CliRunner().invoke(app, ["bench", "--cache-dir", str(tmp_path / "cache"), *arguments])


def test_a_signal_that_is_ignored_does_not_end_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with bench_server._signals_end_the_block():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_server, "COMMAND", (sys.executable, "-c", "raise SystemExit('broken on purpose')"))
    before = signal.getsignal(signal.SIGTERM)
    done = bench_in_process(monkeypatch, tmp_path)
    assert done.exit_code == 1
    assert "gathernd: the server ended with exit code 1 before it was ready\nbroken on purpose\n" in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_server_that_is_never_ready_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_server, "COMMAND", ("/bin/sh", "-c", "echo waiting; exec sleep 600"))
    monkeypatch.setattr(bench_server, "_START_S", 2)
    done = bench_in_process(monkeypatch, tmp_path)
    assert done.exit_code == 1
    assert "gathernd: the server was not ready after 2 s\nwaiting\n" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_temporary_folder_or_with_a_wrong_setting_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryDirectory", refuse)
        done = bench_in_process(patch, tmp_path)
    assert done.exit_code == 1
    assert "gathernd: no temporary folder for the server's store: [Errno 13] Permission denied\n" in done.stderr
    monkeypatch.setenv("GATHERND_THREADS", "0")
    done = bench_in_process(monkeypatch, tmp_path)
    assert done.exit_code == 2
    assert "gathernd: GATHERND_THREADS: " in done.stderr


def test_an_answer_with_other_values_is_an_error() -> None:
    expected = np.array([[1, 2]], np.float32)
    work = Work("some work", "/gathernd", "application/json", b"", expected)
    work.check(b'{"output": {"dtype": "float32", "shape": [1, 2], "values": [1, 2]}}')
    with pytest.raises(BenchFailed, match="some work: the answer is not what NumPy gathers"):
        work.check(b'{"output": {"dtype": "float32", "shape": [1, 2], "values": [1, 3]}}')
    binary = Work("some work", "/gathernd", "application/x-safetensors", b"", expected)
    body = bench_requests._safetensors({"output": expected})
    binary.check(body)
    with pytest.raises(BenchFailed):
        binary.check(body[:-1] + b"\0")


def test_a_kernel_with_other_values_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = RequestThreadPool(1, 0)
    service = Service(Limits(), EmptyStore(), numpy_cpu, pool, BackendChooser(threads=1), Budget(1 << 24))
    for shapes in (bench_kernels.SHAPES[0], bench_kernels.Shapes("batches", (3, 5, 2), (3, 4, 1), 1)):
        assert bench_kernels.compare(service, shapes, 0.001)["ratio"] > 0
    monkeypatch.setattr(numpy_cpu, "run", lambda *_: -1)
    with pytest.raises(BenchFailed, match="otherwise than NumPy"):
        bench_kernels.compare(service, bench_kernels.SHAPES[0], 0.001)


def test_with_a_gpu_the_crossovers_are_told_for_data_in_memory_and_on_it() -> None:
    card = GpuCoefficients(launch_s=1e-5, to_device_byte_s=1e-10, from_device_byte_s=1e-10, slice_s=1e-12)
    chooser = BackendChooser(threads=2, coefficients=replace(TYPICAL, gpu=card), no_gpu=None)
    found = {(row["data"], row["route"]): row["from_rows"] for row in bench_command.crossovers(chooser)}
    assert found["in memory", "event loop"] == found["on the GPU", "event loop"] == 1
    assert found["on the GPU", "the GPU"] < found["in memory", "the GPU"]
    first = calibrate_command.lookup(found["on the GPU", "the GPU"])
    assert chooser.decide(first, Facts(on_gpu=True)).choice.route == "gpu"
