"""The most memory that Python traces while something runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from app.api.request_body import UnknownLengthBody


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes traced at once while `run` runs, without what NumPy from 2.5 on counts twice in a resize."""
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
