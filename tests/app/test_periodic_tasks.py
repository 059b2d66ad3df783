"""When the service takes itself for idle and gives freed memory back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from app.main import create_app
from app.memory.malloc_tuning import MAX_MMAP_THRESHOLD
from app.memory.output_buffer_pool import OutputBufferPool
from app.periodic_tasks import give_back_memory
from app.settings import Settings

LOOKS = 50
"""Many more than the intervals after which a service is idle."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is kept")
@pytest.mark.parametrize("work", ["requests", "large requests", "small requests", "none"])
def test_memory_is_kept_while_there_is_work_and_else_given_back(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(store_dir=tmp_path))
    outputs = app.service.outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    looks = 0

    async def between_looks(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks > LOOKS:
            raise asyncio.CancelledError
        if work == "requests":
            for _ in range(100):
                app.metrics.begin()

    if work == "large requests":
        app.service.budget.used = 1
    if work == "small requests":
        app.service.budget.small_used = 1
    outputs.empty(MAX_MMAP_THRESHOLD, np.dtype(np.uint8))[:] = 1
    kept = outputs.kept
    monkeypatch.setattr("app.periodic_tasks.asyncio.sleep", between_looks)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(give_back_memory(app.metrics, app.service))
    assert (outputs.kept == kept > 0) == (work != "none")
    assert bool(outputs.kept) == (work != "none")
