from __future__ import annotations

import gc
import mmap
import sys
import threading
from pathlib import Path
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


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_smaller_output_than_the_one_before_holds_no_more_than_it_has() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    first = outputs.empty(2 * MAX_MMAP_THRESHOLD, BYTE)
    first[:] = 1
    place, before = address(first), resident()
    del first
    second = outputs.empty(MAX_MMAP_THRESHOLD + 1, BYTE)
    assert address(second) == place
    assert resident() <= before - MAX_MMAP_THRESHOLD // 4 * 3
    second[:] = 2
    assert resident() <= before - MAX_MMAP_THRESHOLD // 4 * 3
    del second
    third = outputs.empty(2 * MAX_MMAP_THRESHOLD, BYTE)
    assert address(third) == place
    third[:] = 3
    assert third.min() == third.max() == 3


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


def test_no_more_is_kept_than_was_said() -> None:
    outputs = OutputBufferPool(3 * MAX_MMAP_THRESHOLD)
    arrays = [outputs.empty(MAX_MMAP_THRESHOLD, BYTE) for _ in range(5)]
    places = [address(array) for array in arrays]
    for at in range(5):
        arrays[at] = np.empty(0, BYTE)
        assert outputs.kept <= 3 * MAX_MMAP_THRESHOLD
    assert outputs.kept == 3 * MAX_MMAP_THRESHOLD
    assert {address(outputs.empty(MAX_MMAP_THRESHOLD, BYTE)) for _ in range(1)} <= set(places[2:])  # those used last


def test_a_block_much_larger_than_the_output_waits_for_a_larger_one() -> None:
    outputs = OutputBufferPool(8 * MAX_MMAP_THRESHOLD)
    place = address(large := outputs.empty(4 * MAX_MMAP_THRESHOLD, BYTE))
    del large
    small = outputs.empty(MAX_MMAP_THRESHOLD, BYTE)
    assert address(small) != place
    assert address(outputs.empty(3 * MAX_MMAP_THRESHOLD, BYTE)) == place


@pytest.mark.parametrize("items", [0, 1, MAX_MMAP_THRESHOLD - 1, 3 * MAX_MMAP_THRESHOLD])
def test_what_the_c_library_keeps_and_what_is_too_large_to_keep_is_left_to_numpy(items: int) -> None:
    outputs = OutputBufferPool(2 * MAX_MMAP_THRESHOLD)
    array = outputs.empty(items, BYTE)
    assert array.base is None
    del array
    assert outputs.kept == 0


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


def test_an_output_may_be_aligned_to_two_cache_lines() -> None:
    outputs = OutputBufferPool(4 * MAX_MMAP_THRESHOLD)
    kept = []
    for items in (1, 5, 1000, MAX_MMAP_THRESHOLD // 4, MAX_MMAP_THRESHOLD // 4 + 1):
        for _ in range(5):
            made = outputs.empty_aligned(items, np.dtype(np.uint32))
            kept.append(made)
            assert made.ctypes.data % 128 == 0
            assert made.dtype == np.uint32
            assert (made.shape, made.flags.carray) == ((items,), True)
