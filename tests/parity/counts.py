"""How many random requests are compared with a reference: seeded ones in `make test-all`, a million in a soak.

What stands here is the number of `make test-all`, over both CPU kernels; `make test` takes a quarter, a soak a hundred
times as many. Each of these tests counts the answers that it has compared, prints the number, and fails if there are
fewer. In a soak they are

- 240,000 in tests/http/test_properties.py: gathers of every dialect and type in JSON, against rules and loops;
- 160,000 scatters against ONNX's reference evaluator, and as far as it takes them against ONNX Runtime;
- 160,000 each of scatters, gathers with `out_of_bounds`, gradients and lookups, valid and invalid, in JSON, safetensors
  and the inference protocol, against loops over single elements and the rules stated once more.

Beside the million are tests/parity/test_onnx.py (40,000 that its peers take) and tests/frameworks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.conftest import samples
from tests.http import test_properties

KERNELS: Final = 2
SHARES: Final = 2
"""Each test runs that many times for each kernel, with other seeds, so that several processes share the work."""
COUNTS: Final[Mapping[str, int]] = {
    "scatters": 1600,
    "scatters by ONNX": 1600,
    "gathers out of bounds": 1600,
    "gradients": 1600,
    "lookups": 1600,
}
FULL: Final = 100
"""GATHERND_SOAK for full counts, the Makefile's default."""


def share_of(what: str) -> int:
    """How many requests one run of a test takes, of one kernel and seed."""
    return samples(COUNTS[what] // (KERNELS * SHARES))


def in_full_soak() -> int:
    """How many requests the tests that count them compare in a soak with full counts."""
    return FULL * (KERNELS * test_properties.COUNT + sum(COUNTS.values()))
