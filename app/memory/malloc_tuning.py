"""Keeps freed memory for the next request instead of giving it back to the kernel.

A body or an output of some megabytes is allocated and freed by each request. Left to itself, the C library returns such
memory at once, and the next request has the kernel find and clear every page again: for 4 MB in, a third of its work.

It also keeps freed memory apart for each thread that asked for it, so that each would come to hold as much as it ever
had at once, and all of them much more than the budget. Here they share: memory is asked for under the interpreter's
lock anyway.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
MAX_MMAP_THRESHOLD: Final = 32 << 20
"""Blocks from this size on come from the kernel and go back to it; the most that glibc takes for this setting."""
MAX_KEPT_BYTES: Final = 256 << 20


def keep_freed_memory(size: int) -> bool:
    """Let the process keep up to `size` freed bytes, `MOST_KEPT` at most, for good; False where glibc is not in use."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = min(size, MAX_KEPT_BYTES)
    settings = (_ARENA_MAX, 1), (_MMAP_THRESHOLD, min(MAX_MMAP_THRESHOLD, kept)), (_TRIM_THRESHOLD, kept)
    done = [bool(mallopt(name, value)) for name, value in settings]
    return all(done)
