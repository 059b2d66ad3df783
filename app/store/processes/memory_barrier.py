"""The memory barrier for the seqlock that lets readers detect scatters. Writers bear its entire cost.

A reader compares the tensor's version before and after reading, and must not need any more work than that. On x86-64,
the processor keeps the reader's loads and the writer's stores in order; other processors may reorder them. On such
processors, membarrier(2) makes every thread of the registered processes execute a full barrier. On systems without that
call, this module does nothing; see `file_system_check`.
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
    """Register this process as a reader, so that `fence` affects it. Returns False on systems without membarrier."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def fence() -> None:
    """Ensure that every registered process sees this process's earlier writes to memory before its later ones."""
    _membarrier(_GLOBAL_EXPEDITED)
