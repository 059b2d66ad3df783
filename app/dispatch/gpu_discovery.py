"""Find the GPU that this process may use, or why there is none."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

from app.kernels.gpu_interface import Device, NoDevice
from app.tensors import gather_call

logger = logging.getLogger("gathernd")


def allow_gpu(device: gather_call.Device, workers: int) -> None:
    """Raise NoDevice if a service for `device` with `workers` worker processes must not use a GPU."""
    if device == "cpu":
        raise NoDevice("this service uses no GPU (GATHERND_DEVICE=cpu)")
    if workers > 1:
        # One process owns the device and its copies. With several workers, responses would depend on the worker.
        raise NoDevice("this service has several workers; a GPU needs a service of one process")


def may_use_gpu(device: gather_call.Device, workers: int) -> bool:
    """Return whether a service for `device` with `workers` worker processes might find a GPU. Does not open one."""
    return device != "cpu" and workers == 1 and find_spec("cupy") is not None


def find_gpu(device: gather_call.Device, workers: int, memory: int | None) -> Device:
    """Open the GPU, limited to `memory` bytes of its memory. Raises NoDevice, with the reason, if there is none."""
    allow_gpu(device, workers)
    try:
        module = import_module("app.kernels.cupy_gpu.device")
    except ModuleNotFoundError:
        raise NoDevice("this service has no GPU: CuPy is not installed") from None
    except ImportError as error:
        logger.warning("CuPy is installed but cannot be imported: %s", error)
        raise NoDevice("this service has no GPU: CuPy cannot be imported") from None
    found: Device = module.CupyDevice(memory)
    return found
