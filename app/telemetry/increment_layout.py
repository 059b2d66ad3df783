"""Where the increments of an answered gather write: into header lines, and into the cells of its metrics."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_id import DIGITS, PREFIX

HEADER_TEMPLATE: Final[Any] = bytearray(
    b"x-request-id: %b-%b\r\nserver-timing: parse;dur=0.000, queue;dur=0.000, kernel;dur=0.000, encode;dur=0.000\r\n"
    % (PREFIX.encode(), b"0" * DIGITS)
)
"""The header lines that are filled in for one answer; they are copied before the next one."""
HEADER_TEMPLATE_AT: Final = np.frombuffer(
    HEADER_TEMPLATE, np.uint8
).ctypes.data  # an argument of the calls, since compiled code is kept for other processes
ID_END: Final = HEADER_TEMPLATE.index(b"\r\n")
PARSE, QUEUE, KERNEL, ENCODE = (
    HEADER_TEMPLATE.index(name) + len(name)
    for name in (b"parse;dur=0.", b"queue;dur=0.", b"kernel;dur=0.", b"encode;dur=0.")
)
SHORT_S: Final = 1e-3
"""Requests that took less have their times written as three digits of microseconds."""

# Places in the table of addresses of the cells of one kind of gathers.
CELLS: Final = 7
REQUESTS, TIMES, ROUTES, MEASURED, RECEIVED, SENT, LOOKUPS = range(CELLS)
"""TIMES has the buckets side by side, one more than there are bounds, then the sum of all seconds and of each stage."""
STAGES: Final = len(BUCKETS) + 2
