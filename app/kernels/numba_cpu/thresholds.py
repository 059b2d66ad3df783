"""The amounts of work at which kernels change their strategy. All measured sizes are defined here.

Measure them with `python -m benchmarks.kernels gather`.
"""

from __future__ import annotations

from typing import Final

# Cache sizes
CACHED_BYTES: Final = 1 << 21
"""Maximum size in bytes of data that is probably cached already. Prefetching so little data costs more than it
saves.
"""
PIECE_BYTES: Final = 1 << 20
"""Number of bytes of a scatter's output that are copied and then scattered into at a time. They fit into an L2 cache.

In larger outputs, items are prefetched.
"""
NONTEMPORAL_BYTES: Final = 20 << 20
"""Size of an output in bytes above which stores bypass the caches, which could not hold it."""

# Prefetch distances
ITEMS_AHEAD: Final = 128
"""A gather prefetches a slice shorter than a cache line this many slices before its copy."""
ROWS_AHEAD: Final = 16
"""Longer rows are prefetched at most this many rows before they are read."""
ROW_BYTES_AHEAD: Final = 4096
"""A gather prefetches at most this many bytes of longer rows."""
LOOKUP_BYTES_AHEAD: Final = 1 << 14
"""A lookup prefetches at most this many bytes of rows."""
PREFETCHED_OF_ROW: Final = 512
"""Bytes of a row that a scatter or a gradient prefetches. The hardware prefetches the rest."""
NEIGHBORS_BYTES: Final = 48
"""Slices that are on average closer together than this share cache lines. Prefetching each of them takes a third more
time.
"""

# Sharing of work
LEAST_TUPLES: Final = 256
"""Minimum number of tuples in a chunk of a gather, unless the chunk has LONG_CHUNK_BYTES of output."""
LONG_CHUNK_BYTES: Final = 1 << 14
"""Size in bytes of a chunk's output from which the chunk takes much longer to run than to hand out."""
LEAST_LOOKUP_CHUNK: Final = 1 << 15
"""Minimum number of bytes that a chunk of a lookup reads and writes."""
LEAST_SHARED_SCATTER: Final = 1000
"""Minimum amount of work in a shared scatter: components, and units of 16 bytes of output and updates.

This much work takes about 0.4 µs, the same as requesting a helper.
"""
WAKE_FROM: Final = 50_000
"""Amount of work above which waking a sleeping helper pays off: components, slices and units of 16 bytes of output.

This much work takes about 20 µs on an EPYC, as long as a helper needs to start.
"""
CHUNKS_PER_THREAD: Final = 4
"""Number of chunks per thread, so that all threads finish together: if the system suspends a helper, the others wait
for only one chunk.
"""
