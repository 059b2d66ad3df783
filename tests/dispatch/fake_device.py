"""A device in the place of a GPU: the gather of NumPy, memory that is counted, and everything that can go wrong."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import reference
from app.kernels.gpu_interface import OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan


class FakeCopy:
    """Items on the device."""

    def __init__(self, device: FakeDevice, items: NDArray[Any]) -> None:
        device.take(items.nbytes)
        weakref.finalize(self, device.take, -items.nbytes)
        self.items = items.copy()
        self.nbytes = items.nbytes


class FakeDevice:
    """See `app.kernels.gpu_interface.Device`. `fails` is called first in each operation with its name."""

    description = "a fake"

    def __init__(self, memory: int = 1 << 30) -> None:
        self.memory = memory
        self.held = 0
        self.fails: Callable[[str], None] = lambda name: None
        self.done: list[str] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        with self._lock:
            if self.held + nbytes > self.memory:
                raise OutOfDeviceMemory(f"{nbytes} bytes wanted, {self.held} of {self.memory} taken")
            self.held += nbytes

    def used(self) -> int:
        return self.held

    def upload(self, items: NDArray[Any]) -> FakeCopy:
        self._begin("upload")
        return FakeCopy(self, items)

    def run(self, plan: GatherPlan, data: Any, indices: NDArray[Any], out: NDArray[Any]) -> int:
        self._begin("run" if isinstance(data, FakeCopy) else "run inline")
        there = FakeCopy(self, data) if isinstance(data, np.ndarray) else data
        needed = indices.nbytes + out.nbytes
        self.take(needed)
        try:
            return reference.run(plan, there.items, indices.astype(np.int64), out)
        finally:
            self.take(-needed)

    def _begin(self, name: str) -> None:
        with self._lock:
            self.done.append(name)
        self.fails(name)
