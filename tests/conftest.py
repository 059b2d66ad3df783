"""Rules for every test.

GATHERND_TEST_ALL=1 runs slow tests, too. GATHERND_REQUIRE_ALL=1 fails a test that skips because a Debian package or an
environment is missing. GATHERND_SOAK=N multiplies counts by N and runs tests marked `soak`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

SOAK = int(os.environ.get("GATHERND_SOAK") or 0)
TEST_ALL = bool(SOAK) or os.environ.get("GATHERND_TEST_ALL") == "1"
# Its import costs as much as pytest's own, and its tests seconds of each process that collects them.
pytest_plugins = ["schemathesis.pytest.plugin"] if TEST_ALL else []
collect_ignore = [] if TEST_ALL else ["http/test_schemathesis.py"]
MISSING = ("needs the Debian package", "needs the environment")  # as tests/needs.py words it
WARMED = {"warmed", "kernel", "every_server"}
"""Fixtures that wait until all that tests share is compiled; the last two ask for `warmed` as they run."""
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

try:
    metadata.distribution("gathernd-server")
except metadata.PackageNotFoundError:
    # An environment from before the client was a distribution of its own has a package `gathernd` that is gone.
    raise pytest.UsageError("gathernd and gathernd-server are not installed: make .venv/.stamp-dev") from None

# Whatever tests start reads its modules compiled, as a user's service does: a fifth less of every start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Samples are the same in every run and every place; a soak looks for new ones. How long one takes fails no test.
ANY_TIME = [HealthCheck.too_slow]
settings.register_profile("sample", derandomize=True, deadline=None, max_examples=10, suppress_health_check=ANY_TIME)
settings.register_profile("soak", deadline=None, max_examples=50 * max(SOAK, 1), suppress_health_check=ANY_TIME)
settings.load_profile("soak" if SOAK else "sample")


def samples(count: int) -> int:
    """Return how many samples of `count` to take: a sixteenth, or in a soak `SOAK` times as many."""
    return count * SOAK if SOAK else max(count // 16, 1)


def slow_but_for(kept: Iterable[object], values: Iterable[object], soaked: Iterable[object] = ()) -> list[Any]:
    """Values for `parametrize`: `make test` runs those `kept`, `make test-all` all, a soak those `soaked` too."""
    few, some = list(kept), list(values)
    more = [value for value in soaked if value not in some]
    marks = [*(() if value in few else pytest.mark.slow for value in some), *(pytest.mark.soak for _ in more)]
    every = [value if isinstance(value, tuple) else (value,) for value in (*some, *more)]
    return [pytest.param(*value, marks=mark) for value, mark in zip(every, marks, strict=True)]


@pytest.fixture(scope="session")
def soak_scale() -> int:
    """By how much to multiply counts: 1 in `make test`."""
    return max(SOAK, 1)


@pytest.fixture(scope="session")
def warmed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with all that is compiled at start-up, for the servers that tests start.

    pytest's cache keeps it for the next run, which compiles what has changed since.
    """
    from tests.http import fork_server

    cache = getattr(request.config, "cache", None)
    own = tmp_path_factory.getbasetemp()
    # The processes that share the tests (pytest-xdist) share the folder too: whoever comes first fills it.
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "warmed" if cache is None else cache.mkdir("compiled")
    folder.mkdir(exist_ok=True)
    with (folder / "warmed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "app.cli", "warm", "--cache-dir", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr
    fork_server.load_from(folder)
    return folder


@pytest.fixture(scope="session")
def compiled(warmed: Path) -> Path:
    """The folder `warmed`, out of which this process has loaded all that is compiled."""
    from app import compile_request_functions
    from app.kernels import numba_cpu

    numba_cpu.configure(warmed)
    compile_request_functions.configure(warmed)
    numba_cpu.warm()
    compile_request_functions.warm()
    return warmed


@pytest.fixture(scope="module", params=["compiled", pytest.param("plain", marks=pytest.mark.soak)])
def every_codec(request: pytest.FixtureRequest, compiled: Path) -> Generator[None, None, None]:
    """The codec of requests in both its forms, one after the other: compiled, and in Python."""
    from app import compile_request_functions

    if request.param == "compiled":
        yield
        return
    used = [function.used for function in compile_request_functions.FUNCTIONS]
    before = [one.run for one in used]
    for one in used:
        one.run = one.plain
    yield
    for one, run in zip(used, before, strict=True):
        one.run = run


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect with garbage collection off, which takes two fifths less time; one process first, which fills caches."""
    gc.disable()
    try:
        with _after_the_first():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _after_the_first() -> Generator[None, None, None]:
    """Run alone if no other process is inside; otherwise wait until the one that runs alone is done."""
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@cache
def _asked_for(function: Callable[..., object] | None) -> Collection[str]:
    """The fixtures that a test names itself."""
    return signature(function).parameters if callable(function) else ()


def _runs(item: pytest.Item) -> bool:
    """Whether a test belongs to this run: `soak` ones to a soak only, `slow` ones to `make test-all` too."""
    if item.get_closest_marker("soak") and not SOAK:
        return False
    return TEST_ALL or not item.get_closest_marker("slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of other runs, demand unique names, and begin with files whose tests start servers or are slow.

    The first of them compiles what all such tests share (`warmed`), while other processes take files without servers.
    """
    left_out = [item for item in items if not _runs(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _runs(item)]
    starting = {"start", "warmed"}
    long = Counter(item.path for item in items if starting & {*_asked_for(getattr(item, "function", None))})
    if TEST_ALL:
        long.update(item.path for item in items if item.get_closest_marker("slow"))
    compiled = {item.path for item in items if not WARMED.isdisjoint(getattr(item, "fixturenames", ()))}
    first = max(compiled, key=lambda path: (long[path], path), default=None)
    long.update(item.path for item in items if item.get_closest_marker("long"))
    items.sort(key=lambda item: (item.path != first, item.path in compiled, -long[item.path]))
    names: set[str] = set()
    for item in items:
        operation = getattr(item, "operation_label", None)
        if operation is not None:  # Schemathesis names its tests of all operations alike
            item._id = item.id.with_params(operation)
        if item.nodeid in names:  # of those pytest-xdist would run one
            raise pytest.UsageError(f"two tests have the name {item.nodeid}")
        names.add(item.nodeid)


def _fail_if_missing(report: Report) -> Report:
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if any(words in reason for words in MISSING) and os.environ.get("GATHERND_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"GATHERND_REQUIRE_ALL is set, so this may not be skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that was skipped for want of a package or an environment fails where those are required."""
    return _fail_if_missing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module."""
    return _fail_if_missing((yield))
