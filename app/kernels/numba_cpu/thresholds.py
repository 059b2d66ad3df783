"""How large work must be for the kernels to treat it in another way: every size that was measured, in one place.

`python -m benchmarks.kernels gather` measures them.
"""

from __future__ import annotations

from typing import Final

# What caches hold
CACHED_BYTES: Final = 1 << 21
"""Data up to this size are in a cache anyway: asking for them ahead costs more than it brings."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of a scatter's output that are copied, and then scattered into, at a time: what a second cache holds. From
larger outputs items are asked for ahead."""
NONTEMPORAL_BYTES: Final = 20 << 20
"""Output from this size on is stored past the caches, which would not hold it."""

# How far ahead memory is asked for
ITEMS_AHEAD: Final = 128
"""A gather asks for a slice shorter than a line this many slices before its copy."""
ROWS_AHEAD: Final = 16
"""Longer rows are asked for at most this many rows before they are read."""
ROW_BYTES_AHEAD: Final = 4096
"""A gather asks for at most this many bytes of longer rows ahead."""
LOOKUP_BYTES_AHEAD: Final = 1 << 14
"""A lookup asks for at most this many bytes of rows ahead."""
PREFETCHED_OF_ROW: Final = 512
"""Bytes of a row that a scatter or a gradient asks for: the processor asks for the others by itself."""
NEIGHBORS_BYTES: Final = 48
"""Slices closer than this on average share cache lines: to ask for each of them costs a third."""

# How work is shared
LEAST_TUPLES: Final = 256
"""Tuples that a chunk of a gather has at least, unless it has LONG_CHUNK_BYTES of output."""
LONG_CHUNK_BYTES: Final = 1 << 14
"""A chunk of this much output takes much longer than it takes to hand it out."""
LEAST_LOOKUP_CHUNK: Final = 1 << 15
"""Bytes that a chunk of a lookup reads and writes at least."""
LEAST_SHARED_SCATTER: Final = 1000
"""Components and 16 bytes of output and of updates of a scatter, some 0.4 µs: to ask for a helper takes as long."""
WAKE_FROM: Final = 50_000
"""Components, slices and 16 bytes of output of a job that is worth waking a sleeping helper: some 20 µs on an EPYC, as
long as a helper takes to come."""
CHUNKS_PER_THREAD: Final = 4
"""So that all threads end together: a helper that the system puts aside keeps all waiting for one chunk."""
