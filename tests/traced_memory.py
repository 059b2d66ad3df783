"""The most memory that Python traces while something runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from app.api.request_body import UnknownLengthBody


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes that are traced at once while `run` runs.

    With NumPy from 2.5 on, which Python 3.12 and newer have, what is traced while the block of a body changes its size
    is left out: it adds the new size before it subtracts the old one, though the block is the same.
    """
    peaks = [0]
    resize = UnknownLengthBody._resize

    def resize_untraced(body: UnknownLengthBody, size: int) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        resize(body, size)
        tracemalloc.reset_peak()

    with pytest.MonkeyPatch.context() as patch:
        if np.lib.NumpyVersion(np.__version__) >= "2.5.0":
            patch.setattr(UnknownLengthBody, "_resize", resize_untraced)
        tracemalloc.start()
        try:
            run()
            return max(*peaks, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
