"""A memory barrier for everybody who reads the store, raised by whoever writes.

Readers of a tensor compare a stamp before and after and must not pay for more. On x86-64 their loads and the writer's
stores keep their order by themselves; other processors may reorder them. membarrier(2) makes every thread of the
registered processes pass a full barrier, so only the rare writer pays. Where the call is missing nothing is
done: see `suitability`.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_NUMBER: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_GLOBAL_EXPEDITED: Final = 2
_REGISTER_GLOBAL_EXPEDITED: Final = 4


def _membarrier(command: int) -> bool:
    if _NUMBER is None:
        return False
    return bool(ctypes.CDLL(None).syscall(_NUMBER, command, 0, 0) == 0)


def register() -> bool:
    """This process reads: later fences include it. Whether the system has them."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def fence() -> None:
    """What was stored before is seen before what is stored after, by every registered process."""
    _membarrier(_GLOBAL_EXPEDITED)
