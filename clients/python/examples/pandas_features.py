"""Serve features from a pandas table: upload its numbers, look users up by id, and get a table back.

The table's index, the users' ids, becomes the keys of the rows. Requires pandas and the client.
GATHERND_URL is the service's URL (default http://127.0.0.1:8080).
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
    client.put("users", users.to_numpy(np.float32), keys=users.index)

    wanted = users.index[[7, 77, 777]]
    found = pd.DataFrame(client.gather("users", keys=wanted), index=wanted, columns=users.columns)
    pd.testing.assert_frame_equal(found, users.loc[wanted].astype(np.float32))

    print(f"{len(found)} users of {len(users)}, spent {found['spent'].mean():.2f} on average")
    client.delete("users")
