"""Shapes whose products overflow, as in well-known runtimes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.conformance.cases import Case, at, refused
from tests.http.forms import int64, tensor


def _overflows() -> Iterator[Case]:
    """Shapes whose product wraps to the number of values that came, or hides behind a dimension of 0."""
    good = {"data": tensor("float32", [2, 2], [0, 1, 2, 3]), "indices": int64([1, 1], [0])}
    for shape in ([2**32, 2**32], [2**63, 2], [2**62, 4], [2**16] * 4, [2**33, 2**31], [10**30, 1]):
        for role in ("data", "indices"):
            for items in ([], [0]):
                given = good | {role: good[role] | {"shape": shape, "values": items}}
                yield refused("element_count_mismatch", given, at(f"/{role}/values"))
    for shape, limit in (([0, 2**63], "dimension"), ([2**32, 2**32, 0], "bytes"), ([2**62, 0, 4], "bytes"),
                         ([0, 10**30], "dimension"), ([2**63 - 1, 0], "bytes")):  # fmt: skip
        given = {"data": tensor("float32", shape, []), "indices": int64([0, 1], [])}
        facts = {"limit": limit, "maximum": 2**63 - 1}
        yield refused("limit_exceeded", given, at("/data/shape"), facts=facts)
    row, many = np.full((1, 16384), 0.5, np.float32), np.zeros(16385, np.int64)
    facts = {"limit": "output_bytes", "maximum": 2**30}
    yield refused("output_too_large", {"data": row, "indices": many[:, np.newaxis]}, at("/indices/shape"), facts=facts)
    yield refused("output_too_large", {"data": row, "indices": many}, at("/indices/shape"), "/gather", facts=facts)


TRAPS = list(_overflows())
