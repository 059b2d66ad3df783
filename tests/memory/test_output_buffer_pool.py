from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.memory.malloc_tuning import MAX_MMAP_THRESHOLD
from app.memory.output_buffer_pool import OutputBufferPool

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is kept")
BYTE = np.dtype(np.uint8)


def address(array: NDArray[Any]) -> int:
    return array.ctypes.data


def test_a_large_output_uses_the_memory_of_one_that_is_gone() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    first = outputs.empty(MAX_MMAP_THRESHOLD // 8 + 5, np.dtype(np.uint64))
    assert first.shape == (MAX_MMAP_THRESHOLD // 8 + 5,)
    assert first.dtype == np.uint64
    assert first.flags.writeable
    assert first.flags.aligned
    first[[0, -1]] = 7
    place = address(first)
    del first
    assert outputs.kept >= MAX_MMAP_THRESHOLD
    second = outputs.empty(MAX_MMAP_THRESHOLD + 1, BYTE)
    assert address(second) == place
    assert outputs.kept == 0


def test_memory_that_any_view_still_shows_is_not_given_to_another() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    first = outputs.empty(MAX_MMAP_THRESHOLD, BYTE)
    first[:] = 1
    shown: Any = first.view(np.float32).reshape(2, -1)[1:]
    view = memoryview(shown).cast("B")
    del first, shown
    assert outputs.kept == 0
    second = outputs.empty(MAX_MMAP_THRESHOLD, BYTE)
    second[:] = 2
    assert view[0] == view[-1] == 1
    del view
    assert outputs.kept >= MAX_MMAP_THRESHOLD


def test_outputs_that_the_collector_finds_come_back() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    ring: list[object] = [outputs.empty(MAX_MMAP_THRESHOLD, BYTE)]
    ring.append(ring)
    del ring
    gc.collect()
    assert outputs.kept >= MAX_MMAP_THRESHOLD


def test_threads_never_share_a_block() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            array = outputs.empty(MAX_MMAP_THRESHOLD, BYTE)
            array[:64] = number
            array[-64:] = number
            if (array[:64] != number).any() or (array[-64:] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert outputs.kept <= 4 * MAX_MMAP_THRESHOLD
