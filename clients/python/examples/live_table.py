"""Change a table while it is read: four threads look rows up and one adds to them. No lookup sees half a change.

Each change adds 1 to the same 64 rows at once. A lookup that saw half of it would find unequal rows.
GATHERND_URL is the service's URL (default http://127.0.0.1:8080).
"""

from __future__ import annotations

import threading

import numpy as np

from gathernd import Client

CHANGES = 200
rows = np.arange(0, 6400, 100)
ones = np.ones((len(rows), 32), np.float32)
done = threading.Event()
lookups: list[int] = []


def look_up(client: Client) -> None:
    seen, count = 0.0, 0
    while not done.is_set():
        found = client.gather("live", rows)
        assert (found == found[0, 0]).all(), "half a change was seen"
        assert found[0, 0] >= seen, "an older content was seen after a newer one"
        seen, count = found[0, 0], count + 1
    lookups.append(count)


with Client() as client:
    client.put("live", np.zeros((10_000, 32), np.float32))
    readers = [threading.Thread(target=look_up, args=(client,)) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(CHANGES):
            client.scatter("live", rows[:, None], ones, "add")
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert len(lookups) == len(readers), "a reader failed"
    assert (client.gather("live", rows) == CHANGES).all()
    print(f"{CHANGES} changes, {sum(lookups)} lookups in the meantime, none of which saw half a change")
    client.delete("live")
