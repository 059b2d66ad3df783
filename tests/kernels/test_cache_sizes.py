"""What the processor's caches hold, and what depends on it."""

from __future__ import annotations

from pathlib import Path

from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.cache_sizes import largest_cache
from app.kernels.numba_cpu.copy_slices import NONTEMPORAL_BYTES
from app.kernels.numba_cpu.run_job import ZEROS_PAST_CACHES_FROM
from tests.for_each import for_each


@for_each(
    ("sizes", "largest"),
    [
        (("48K", "32K", "2048K", "307200K"), 300 << 20),
        (("32K\n", "1024K\n", "32M\n"), 32 << 20),
        (("1G", "12"), 1 << 30),
        (("64K", "", "K", "many", "-"), 64 << 10),
        ((), 0),
    ],
)
def test_the_largest_cache_is_read_as_linux_writes_it(sizes: tuple[str, ...], largest: int, tmp_path: Path) -> None:
    folder = tmp_path / str(len(sizes)) / "cache"
    for number, size in enumerate(sizes):
        (folder / f"index{number}").mkdir(parents=True)
        (folder / f"index{number}" / "size").write_text(size)
    assert largest_cache(folder) == largest


def test_zeros_are_stored_past_caches_that_would_not_hold_them_twice(compiled: Path) -> None:
    settings = gather_kernel.thread_team().settings
    assert settings[ZEROS_PAST_CACHES_FROM] == max(NONTEMPORAL_BYTES, largest_cache() // 2)
