"""Changes of tables by key, with two workers, under readers that must see them whole."""

from __future__ import annotations

import random
from threading import Event, Thread
from typing import Any

import numpy as np

from gathernd import Client, Feature
from tests.conftest import samples
from tests.http.conftest import Start
from tests.http.server import TWO_WORKERS

GROUP = 8
GROUPS = 6


def test_readers_see_whole_changes(start: Start) -> None:
    """Keys come and go in groups, whose rows have their key and one stamp: so does all that a reader sees."""
    with start(*TWO_WORKERS) as server, Client(server.url, retries=10) as client:
        groups = np.arange(GROUP * GROUPS).reshape(GROUPS, GROUP)
        client.put("groups", np.zeros((0, 2), np.float32), keys=np.zeros(0, np.int64))
        stop, seen = Event(), [0]
        wrong: list[Any] = []

        def read(seed: int) -> None:
            some = random.Random(seed)
            with Client(server.url) as own:
                while not stop.is_set() and not wrong:
                    keys = groups[some.randrange(GROUPS)]
                    if some.random() < 0.5:
                        result = own.gather("groups", keys=keys, missing="fill", found=True)
                        rows, found = result.array, result.found
                    else:
                        feature = Feature("groups", keys=keys, missing="fill", found=True)
                        looked_up = own.lookup([feature], with_info=True)
                        rows, found = looked_up.output, looked_up.found[0]
                    is_whole = found.all() and (rows[:, 0] == keys).all() and (rows[:, 1] == rows[0, 1]).all()
                    if not is_whole and (found.any() or rows.any()):
                        wrong.append((keys.tolist(), rows.tolist(), found.tolist()))
                    seen[0] += 1

        readers = [Thread(target=read, args=(number,)) for number in range(3)]
        for reader in readers:
            reader.start()
        some = random.Random(7)
        try:
            for stamp in range(1, samples(1_000)):
                keys = groups[some.randrange(GROUPS)]
                if some.random() < 0.4:
                    client.remove("groups", keys)
                else:
                    client.upsert("groups", keys, np.stack([keys, np.full(GROUP, stamp)], axis=1).astype(np.float32))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert not wrong
        assert seen[0] > 10
