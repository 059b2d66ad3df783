"""The hash of keys beside CPython's own SipHash-1-3, whose seed an environment variable sets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from app.keys.key_column import KeyColumn
from app.keys.key_index import hash_keys
from tests.for_each import for_each

pytestmark = pytest.mark.usefixtures("every_codec")

MESSAGES = [bytes(range(size)) for size in (*range(1, 33), 200)]


def python_seed(number: int) -> bytes:
    """The bytes that CPython makes of PYTHONHASHSEED."""
    seed = bytearray()
    for _ in range(16 * (number > 0)):
        number = (number * 214013 + 2531011) % 2**32
        seed.append(number >> 16 & 255)
    return bytes(seed) or bytes(16)


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="this Python has another hash")
@for_each("number", [0, 1, 4294967295])
def test_it_is_the_hash_of_python(number: int) -> None:
    program = "print([hash(bytes(range(size))) % 2**64 for size in (*range(1, 33), 200)])"
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, env={"PYTHONHASHSEED": str(number)}, capture_output=True, text=True, check=True)
    assert str(hash_keys(KeyColumn.of_strings(MESSAGES), python_seed(number)).tolist()) == told.stdout.strip()


def test_an_integer_is_hashed_as_its_eight_bytes() -> None:
    numbers = np.array([0, 1, 2**64 - 1, 2**63], np.uint64)
    octets = KeyColumn.strings(np.arange(5) * 8, numbers.view(np.uint8))
    expected = hash_keys(octets, bytes(range(16))).tolist()
    assert hash_keys(KeyColumn.integers(numbers), bytes(range(16))).tolist() == expected
    assert hash_keys(KeyColumn.integers(numbers.view(np.int64)), bytes(range(16))).tolist() == expected
