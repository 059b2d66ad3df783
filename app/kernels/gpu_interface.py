"""The interface of a GPU, with its three errors. It copies tensors to the GPU's memory and runs gathers there.

`cupy_gpu.device` implements it; no other module imports CuPy.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from app.operators.gather_plan import GatherPlan


class NoDevice(Exception):
    """No usable GPU was found. The message says why."""


class OutOfDeviceMemory(Exception):
    """The device does not have enough free memory now."""


class DeviceFailed(Exception):
    """The device or its driver reported an error. From then on, nothing that the device does can be trusted."""


class Copy(Protocol):
    """Items in device memory. The memory is freed when the last reference to this object is gone."""

    nbytes: int


class Device(Protocol):
    """One GPU. All methods block and are thread-safe.

    `description` is its human-readable name; `memory` is the maximum number of bytes of its memory that the service may
    use.
    """

    description: str
    memory: int

    def upload(self, items: NDArray[Any]) -> Copy:
        """Copy `items` to the device. May raise OutOfDeviceMemory or DeviceFailed."""
        ...

    def run(self, plan: GatherPlan, data: Copy | NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
        """Like `app.kernels.Kernel.run`. `data` is in device or host memory; `indices` may have any integer type.

        May raise OutOfDeviceMemory or DeviceFailed.
        """
        ...

    def used(self) -> int:
        """Return the number of bytes of device memory that copies and gathers currently hold."""
        ...
