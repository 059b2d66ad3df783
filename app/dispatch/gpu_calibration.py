"""Measures the coefficients of a GPU for the cost model, in a fraction of a second.

All figures are of whole gathers as a request makes them, through staging memory and back, since those are predicted;
what the device itself can do is measured by `benchmarks/gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np

from app.dispatch.backend_cost_model import GpuCoefficients
from app.kernels.gpu_interface import Device
from app.operators.gather_plan import GatherPlan

_FLOOR: Final = 1e-13  # seconds: a difference of two measured times may come out at zero or below
_BYTES: Final = 1 << 26
_ROW: Final = 4096
_ITEMS: Final = 200_000
_REPEATS: Final = 5


def measure_gpu(device: Device, nbytes: int = _BYTES) -> GpuCoefficients:
    """Time a small gather, the transfers to the device and back, and many small slices.

    `nbytes` is the size of the data, reduced to an eighth of the device's memory. Raises OutOfDeviceMemory
    and DeviceFailed.
    """
    nbytes = max(min(nbytes, device.memory // 8) // _ROW, 1) * _ROW
    source = np.random.default_rng(1)
    data = source.integers(0, 255, nbytes, np.uint8).view(np.uint32)
    to_device = _best(lambda: device.upload(data)) / nbytes
    copy = device.upload(data)

    def gather(width: int, count: int) -> Callable[[], int]:
        rows = nbytes // width
        plan = GatherPlan(1, count, (rows,), width // 4, 4, False, True)
        indices = source.integers(0, rows, count)
        out = np.zeros(plan.output_items, np.uint32)
        return lambda: device.run(plan, copy, indices, out)

    launch = _best(gather(4, 2), 50)
    rows = nbytes // _ROW
    # It includes the kernel's own time for a byte, which cannot be told apart and need not be.
    from_device = max((_best(gather(_ROW, rows)) - launch - 8 * rows * to_device) / nbytes, _FLOOR)
    items = min(_ITEMS, nbytes // 4)
    item = (_best(gather(4, items)) - launch) / items - 8 * to_device - 4 * from_device
    return GpuCoefficients(
        launch_s=max(launch, _FLOOR),
        to_device_byte_s=max(to_device, _FLOOR),
        from_device_byte_s=from_device,
        slice_s=max(item, _FLOOR),
    )


def _best(call: Callable[[], Any], repeats: int = _REPEATS) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return min(times)
