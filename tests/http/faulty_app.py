"""Servers of which a part is replaced, most to misbehave on purpose: `python -m tests.http.faulty_app HOW FLAGS`.

HOW is `broken` (the kernel raises, and so does the control-plane route /broken), `held` (see `tests.http.held`),
`starting` (the kernels are never ready), `compiling` (they are being compiled for longer than anybody waits), `failing`
(they cannot be compiled), `counting` (/compilations says how often Numba has compiled or loaded anything, and what is
compiled after the service is ready is held), `gpu` (the kernel's source runs on the CPU, through a fake of CuPy) or
`breaking-gpu` (the same, and it reports an error in the second launch after those that measure it). Nothing in the
service knows of these: they are made from its parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

from numba.core.event import Listener, register
from numpy.typing import NDArray

from app import main, warmup
from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.api.route_rows.operation import CONTROL, Operation, Route
from app.api.route_table import TABLE
from app.dispatch import gpu_discovery
from app.dispatch.choose_backend import Size
from app.dispatch.measured_rates import measure_gpu
from app.kernels import Kernel, reference
from app.kernels.gpu_interface import Device
from app.main import Application, create_app
from app.operators.gather_plan import Plan
from app.security.authorizer import Access
from app.server_from_settings import serve
from app.settings import Settings
from app.tensors import gather_call

Array = NDArray[Any]
HOLD = "hold"
"""The name of the file beside a server's store that makes it wait."""
SECRET = "a detail that no client may see"


class Broken:
    name = "broken"
    splits = False

    def run(self, *args: Any, **kwargs: Any) -> int:
        raise RuntimeError(SECRET)


class Held:
    """Gathers once no file keeps it from that."""

    name = "held"
    splits = False

    def __init__(self, file: Path) -> None:
        self.file = file

    def run(self, plan: Plan, data: Array, indices: Array, out: Array, *args: Any, **kwargs: Any) -> int:
        _wait_for_end(self.file)
        return reference.run(plan, data, indices, out)


def make(how: str, settings: Settings) -> Application:
    if how.endswith("gpu"):
        _emulate_gpu(breaks=how == "breaking-gpu")
    app = create_app(settings)
    if how == "broken":
        app.service.kernel = Broken()
        add_route(app, "/broken", _fail)
    elif how == "held":
        app.service.kernel = Held(settings.store_dir.parent / HOLD)
    elif how == "starting":
        app.readiness.waiting_for.append("a kernel that never comes")
    elif how in ("compiling", "failing"):
        warmup.warm = {"compiling": _compile, "failing": _fail_to_compile}[how]
    elif how == "counting":
        compilations = Compilations()
        warmup.warm = _hold_rest(warmup.warm, settings.store_dir.parent / HOLD)
        add_route(app, "/compilations", compilations.send)
    return app


def add_route(app: Application, path: str, handler: Handler) -> None:
    """Have a GET of `path` answered by `handler`, on the control plane."""
    app.handlers = {**app.handlers, path: handler}
    TABLE.add(Route(path, CONTROL, Access.GATHER, {"GET": Operation(path, "")}))


class Compilations(Listener):
    """Counts how often Numba takes the lock that it compiles and loads under."""

    def __init__(self) -> None:
        self.count = 0
        register("numba:compiler_lock", self)  # type: ignore[no-untyped-call]

    async def send(self, context: RequestContext) -> None:
        await context.send(200, JSON, b"%d" % self.count)

    def on_start(self, event: Any) -> None:
        self.count += 1

    def on_end(self, event: Any) -> None:
        pass


def _emulate_gpu(breaks: bool) -> None:
    from tests.kernels import fake_cupy

    machine = fake_cupy.Machine()
    machine.free = 1 << 24  # little, so that it is measured soon
    launches = 0

    def find(device: gather_call.Device, workers: int, memory: int | None) -> Device:
        gpu_discovery.allow_gpu(device, workers)
        with fake_cupy.cupy_gpu(machine) as module:
            found: Device = module.CupyDevice(memory)
        return found

    def fail(name: str) -> None:
        nonlocal launches
        launches += name == "launch"
        if launches > 1:
            raise fake_cupy.CUDARuntimeError(700)

    def measured(device: Device, kernel: Kernel, threads: int, nbytes: int = 1 << 24) -> Size:
        size = measure_gpu(device, kernel, threads, nbytes)  # launches as often as the clock has it
        machine.fails = fail
        return size

    gpu_discovery.find_gpu = find
    if breaks:
        main.measure_gpu = measured  # type: ignore[attr-defined]


def _wait_for_end(file: Path) -> None:
    while file.exists():
        sleep(0.005)


def _hold_rest(warm: Callable[..., Callable[[], None] | None], file: Path) -> Callable[..., Callable[[], None]]:
    """Compile as `warm` does, and what it leaves for later once `file` is gone."""

    def held(*args: Any) -> Callable[[], None]:
        rest = warm(*args)

        def compile_rest() -> None:
            _wait_for_end(file)
            if rest is not None:
                rest()

        return compile_rest

    return held


def _compile(cache_dir: Path, progress: Callable[[str], None], kernel: str = "numba") -> None:
    sleep(600)


def _fail_to_compile(cache_dir: Path, progress: Callable[[str], None], kernel: str = "numba") -> None:
    sleep(0.5)
    raise RuntimeError(SECRET)


async def _fail(context: RequestContext) -> None:
    raise RuntimeError(SECRET)


if __name__ == "__main__":
    chosen = Settings(_cli_parse_args=sys.argv[2:])
    serve(chosen, make(sys.argv[1], chosen))
