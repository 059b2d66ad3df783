"""Serve features that stand in a pandas table: upload its numbers, look users up by their id, get a table back.

The service knows rows by number, so the program that asks keeps the index: the id of each row.
Needs pandas beside the client. GATHERND_URL says where the service is, 127.0.0.1:8080 unless set.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gathernd import Client

random = np.random.default_rng(1)
users = pd.DataFrame(
    {"age": random.integers(18, 90, 1000), "visits": random.poisson(3, 1000), "spent": random.gamma(2, 20, 1000)},
    index=pd.Index(random.permutation(100_000)[:1000], name="user"),
)

with Client() as client:
    client.put("users", users.to_numpy(np.float32))

    wanted = users.index[[7, 77, 777]]
    rows = users.index.get_indexer(wanted)  # -1 for an unknown id, which would be the last row
    assert (rows >= 0).all()
    found = pd.DataFrame(client.gather("users", rows), index=wanted, columns=users.columns)
    pd.testing.assert_frame_equal(found, users.loc[wanted].astype(np.float32))

    # One column of these rows: a tuple of row and column for each item.
    column = users.columns.get_loc("spent")
    spent = client.gathernd("users", np.stack([rows, np.full_like(rows, column)], axis=1))
    assert np.array_equal(spent, found["spent"])

    print(f"{len(found)} users of {len(users)}, spent {spent.mean():.2f} on average")
    client.delete("users")
