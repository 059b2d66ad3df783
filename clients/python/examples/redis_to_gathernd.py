"""Copy rows out of Redis into a table with keys, and compare a sample of both.

    python redis_to_gathernd.py 'user:*' users --dtype float32              values are the bytes of rows
    python redis_to_gathernd.py 'user:*' users --fields age,spent           values are hashes, fields are numbers

The part of a Redis key that `*` matches becomes the key of its row: 42 for user:42, an integer with --integers.
Requires the packages redis and numpy, and the client. GATHERND_URL and REDIS_URL are the URLs of the service and of
Redis.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import redis
from numpy.typing import NDArray

from gathernd import Client, GatherNDError

AT_ONCE = 1000
SAMPLE = 256


def read_rows(
    store: redis.Redis, names: Sequence[bytes], dtype: str, fields: Sequence[str] | None
) -> Iterator[NDArray[Any] | None]:
    """Yield the row of each name, or None if it has expired. Raises ValueError for a value that is not a row."""
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        pipeline = store.pipeline(transaction=False)
        for name in some:
            if fields is None:
                pipeline.get(name)
            else:
                pipeline.hmget(name, fields)
        for name, value in zip(some, pipeline.execute(), strict=True):
            if value is None or (fields is not None and not any(item is not None for item in value)):
                yield None
                continue
            try:
                row = np.frombuffer(value, dtype) if fields is None else np.array(list(map(float, value)), dtype)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name.decode()}: {error}") from None
            yield row


def read_table(
    store: redis.Redis, pattern: str, dtype: str, fields: Sequence[str] | None
) -> tuple[list[str], NDArray[Any]]:
    """Return the part of each name that `*` matches, and the rows. Raises ValueError if they do not form a table."""
    before, _, after = pattern.partition("*")
    # SCAN may return a key twice.
    names = sorted(set(store.scan_iter(pattern, count=AT_ONCE, _type="STRING" if fields is None else "HASH")))
    kept: list[str] = []
    rows: list[NDArray[Any]] = []
    for name, row in zip(names, read_rows(store, names, dtype, fields), strict=True):
        if row is None:
            continue
        if rows and row.shape != rows[0].shape:
            raise ValueError(f"{name.decode()} has {len(row)} items, {before}{kept[0]}{after} has {len(rows[0])}")
        kept.append(name.decode()[len(before) : len(name.decode()) - len(after)])
        rows.append(row)
    if not rows:
        raise ValueError(f"Redis has no {'byte strings' if fields is None else 'hashes'} {pattern}")
    return kept, np.stack(rows)


def main() -> None:
    """Copy the rows, then compare a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", help="which keys of Redis, with one *")
    parser.add_argument("table", help="name of the table")
    parser.add_argument(
        "--dtype", default="float32", help="type of the items: of the bytes, or of the table made of hashes"
    )
    parser.add_argument(
        "--fields", type=lambda text: text.split(","), help="the fields of hashes, in the order of columns"
    )
    parser.add_argument("--integers", action="store_true", help="keys are integers")
    options = parser.parse_args()
    if options.pattern.count("*") != 1:
        parser.error("the pattern has one *")
    store = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    try:
        names, rows = read_table(store, options.pattern, options.dtype, options.fields)
        keys: Any = [int(name) for name in names] if options.integers else names
        with Client() as client:
            client.put(options.table, rows, keys=keys, note=f"from Redis, {options.pattern}")
            sample = random.sample(range(len(keys)), min(SAMPLE, len(keys)))
            served = client.gather(options.table, keys=[keys[place] for place in sample])
        if not np.array_equal(served, rows[sample], equal_nan=True):
            sys.exit("a row of the table is not that of Redis")
    except (GatherNDError, ValueError, redis.RedisError) as error:
        sys.exit(f"nothing was copied: {error}")
    print(f"{len(rows)} rows of {rows.shape[1]} {rows.dtype} are in {options.table}; {len(sample)} were compared")


if __name__ == "__main__":
    main()
