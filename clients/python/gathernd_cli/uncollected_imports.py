"""Import modules without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Turn off garbage collection inside the block, and exclude the objects created there from later collections.

    This is safe because imported modules live as long as the process. It saves a tenth of the service's startup time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
