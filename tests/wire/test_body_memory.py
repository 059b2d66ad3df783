"""The memory that reading a body takes: charged before it is taken, so that the budget holds, whatever the body is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.costly_bodies.makers import MAKERS
from tests.costly_bodies.read_body import Body, read
from tests.told_memory import ToldMemory
from tests.traced_memory import peak_of

CONSTANT_BYTES = 3 << 20
"""What any request may hold for a moment: the part of it that becomes Python objects is limited."""
HEADER = 60_000
"""A query is a part of the header, which is limited."""
SIZES = {"query": HEADER, "npy": 20_000}
"""How large the bodies of a group are, if not SAMPLE."""
SAMPLE = 200_000

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def undisturbed(compiled: Path) -> Iterator[None]:
    """No garbage collection in the middle of what was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def sample(group: str) -> list[Body]:
    """Some of the bodies of a group."""
    bodies = list(MAKERS[group](SIZES.get(group, SAMPLE)))
    step = max(1, len(bodies) // (200 if SOAK else 3))
    return bodies[:: step + 1 - step % 2]  # an odd step meets every format and every element


def untold(body: Body) -> str | None:
    """What memory is taken that was not charged before, if any is.

    A body is read again if so: the first time, a table of the process may grow that all bodies share, such as that of
    the interned strings.
    """
    return taken_once(body) and taken_once(body)


def taken_once(body: Body) -> str | None:
    """What memory is taken that was not charged before, if any is."""
    charges: list[int] = []
    peak = peak_of(lambda: read(body, ToldMemory(charges.append))) - CONSTANT_BYTES
    most = max(accumulate(charges), default=0)
    if peak > most:
        # What other threads take meanwhile is counted too: an earlier test may have left one.
        threads = ", ".join(one.name for one in threading.enumerate() if one is not threading.current_thread())
        told = f"{peak} bytes, of which {most} were charged; other threads: {threads}"
        return f"{body.format} {body.to}, {body.name}: {told}"
    return None


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_takes_memory_untold(group: str) -> None:
    assert not [found for body in sample(group) if (found := untold(body))]
