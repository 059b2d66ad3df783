"""The memory barrier of the seqlock by which readers notice scatters: its whole cost is on the writers.

Readers of a tensor compare its version before and after, and must not pay for more. On x86-64 their loads and the
writer's stores keep their order by themselves; other processors may reorder them. There membarrier(2) makes every
thread of the registered processes pass a full barrier. Where the call is missing nothing is done: see
`file_system_check`.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_SYSCALL: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_GLOBAL_EXPEDITED: Final = 2
_REGISTER_GLOBAL_EXPEDITED: Final = 4


def _membarrier(command: int) -> bool:
    if _SYSCALL is None:
        return False
    return bool(ctypes.CDLL(None).syscall(_SYSCALL, command, 0, 0) == 0)


def register() -> bool:
    """Let later calls of `fence` include this process, a reader; False if the system lacks membarrier."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def fence() -> None:
    """Every registered process sees earlier stores of this one before later ones."""
    _membarrier(_GLOBAL_EXPEDITED)
