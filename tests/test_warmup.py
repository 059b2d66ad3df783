"""The second process that compiles."""

from __future__ import annotations

import os

from app import warmup


def test_a_parent_that_has_ended_is_told_nothing_and_nothing_fails() -> None:
    reading, writing = os.pipe()
    warmup._tell_parent(writing)
    assert os.read(reading, 10) == b"d"
    os.close(reading)
    warmup._tell_parent(writing)
    os.close(writing)
