"""Keys while the first start compiles: many are inserted by compiled code, and a search leaves its rest to that."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

from app.compilation.until_compiled import UntilCompiled
from app.keys import probe
from app.keys.key_column import KeyColumn
from app.keys.key_index import Duplicates, KeyIndex, build, hash_keys, new_seed

pytestmark = pytest.mark.usefixtures("compiled")
COLUMN = KeyColumn.integers(np.arange(4000) * 7)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The compiled functions, in a service that still compiles: the plain ones are in use."""
    monkeypatch.setattr(UntilCompiled, "are_due", True)
    functions = {name: getattr(probe, name).run for name in ("insert", "find", "hash_keys")}
    for name in functions:
        monkeypatch.setattr(getattr(probe, name), "run", getattr(probe, name).plain)
    return functions


@pytest.mark.parametrize("succeeds", [True, False])
def test_many_keys_wait_until_their_function_is_compiled_or_nobody_compiles(
    succeeds: bool, fast: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed: list[tuple[KeyIndex, Duplicates]] = []
    thread = Thread(target=lambda: indexed.append(build(COLUMN, new_seed())))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    if succeeds:
        probe.insert.run = fast["insert"]
    else:
        monkeypatch.setattr(UntilCompiled, "are_due", False)
    thread.join(60)
    index, duplicates = indexed[0]
    assert duplicates.total == 0
    assert index.find(COLUMN, COLUMN).tolist() == list(range(len(COLUMN)))


def test_a_search_that_began_in_python_ends_in_compiled_code(fast: dict[str, Any]) -> None:
    seed = bytes(range(16))
    expected = hash_keys(COLUMN.rows(0, 300), seed)
    index, _ = build(COLUMN.rows(0, 300), seed)
    probe.hash_keys.run, probe.find.run = fast["hash_keys"], fast["find"]
    out = np.zeros(300, np.int64)
    probe.hash_keys.plain(*COLUMN.arrays, np.frombuffer(seed, np.uint8), out, 0, 300)
    assert (out.view(np.uint64) == expected).all()
    wanted = KeyColumn.integers(np.array([-1, 0, 7, 8]))
    searches = [index.search(COLUMN.rows(0, 300), wanted) for _ in range(2)]
    numbers = np.array([[0, 0, -1], [0, 0, 400]])
    probe.find.plain(tuple(searches), numbers)
    assert numbers[:, 2].tolist() == [2, 2]
    assert [one.rows.tolist() for one in searches] == [[-1, 0, 1, -1], [400, 0, 1, 400]]
