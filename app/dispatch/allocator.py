"""Keeps freed memory for the next request instead of giving it back to the kernel.

A body or an output of some megabytes is allocated and freed by each request. Left to itself, the C library returns such
memory at once, and the next request has the kernel find and clear every page again: for 4 MB in, a third of its work.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
LARGEST: Final = 32 << 20
"""Blocks from this size on come from the kernel and go back to it; the most that glibc takes for this setting."""
MOST_KEPT: Final = 256 << 20


def keep_freed_memory(size: int) -> bool:
    """Let the process keep up to `size` freed bytes, `MOST_KEPT` at most, for good; False where glibc is not in use."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = min(size, MOST_KEPT)
    return bool(mallopt(_MMAP_THRESHOLD, min(LARGEST, kept)) and mallopt(_TRIM_THRESHOLD, kept))
