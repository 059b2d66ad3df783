"""The header lines and the metrics of an answered gather, in one call, compiled once that is ready.

add(table, start, parsed, kernel, done, finished, received, sent) counts a gather in the cells (see `shared_counters`)
whose addresses stand at the address `table`, 0 for those that it has not. The times are seconds of `perf_counter`, the
others are bytes. answer(HEADER_TEMPLATE_AT, table, number, ...) also writes
the request's id and times into HEADER_TEMPLATE, the header lines that most answers have; for a request that took long
it does nothing and returns False.
"""

from __future__ import annotations

from typing import Final

from app.compiled_later import CompiledLater
from app.telemetry import plain_increments

answer: Final = CompiledLater(plain_increments.answer)
add: Final = CompiledLater(plain_increments.add)
