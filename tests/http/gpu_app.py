"""A service with a GPU that is none: `python -m tests.http.gpu_app [--break-after N] FLAGS`.

Everything is the service's own down to the kernel's source, which runs on the CPU through a fake of CuPy. With
--break-after the device reports an error in the launch after the first N.
"""

from __future__ import annotations

import sys

from app import main
from app.dispatch import gpu_discovery
from app.dispatch.choose_backend import Size
from app.dispatch.measured_rates import measure_gpu
from app.kernels import Kernel
from app.kernels.gpu_interface import Device
from app.server_from_settings import serve
from app.settings import Settings
from app.tensors import gather_call
from tests.kernels import fake_cupy
from tests.kernels.fake_cupy import CUDARuntimeError, Machine


def find(device: gather_call.Device, workers: int, memory: int | None, break_after: int) -> Device:
    """The fake device, which begins to fail after `break_after` launches beyond those that measure it."""
    gpu_discovery.allow_gpu(device, workers)
    machine = Machine()
    machine.free = 1 << 24  # little, so that it is measured soon
    with fake_cupy.cupy_gpu(machine) as module:
        found: Device = module.CupyDevice(memory)
    left = break_after

    def fail(name: str) -> None:
        nonlocal left
        if name == "launch":
            left -= 1
            if left < 0:
                raise CUDARuntimeError(700)

    def measured(device: Device, kernel: Kernel, threads: int, nbytes: int = 1 << 24) -> Size:
        size = measure_gpu(device, kernel, threads, nbytes)  # launches as often as the clock has it
        machine.fails = fail
        return size

    if break_after >= 0:
        main.measure_gpu = measured  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    arguments = sys.argv[1:]
    breaks = -1
    if arguments[:1] == ["--break-after"]:
        breaks = int(arguments[1])
        del arguments[:2]
    chosen = Settings(_cli_parse_args=arguments)
    gpu_discovery.find_gpu = lambda device, workers, memory: find(device, workers, memory, breaks)
    serve(chosen, main.create_app(chosen))
