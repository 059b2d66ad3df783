"""What shards say to each other of a range, also shards of other versions of the service."""

from __future__ import annotations

import orjson
import pytest

from app.cluster.shard.range_messages import keys_json, read_keys
from app.store.publish_and_remove_versions import CarriedKey

OF_SCATTER = CarriedKey("k1", "d1", 3, 10)
OF_REMOVAL = CarriedKey("k2", "d2", 4, 20, (5, 0, 2, 1))


def test_idempotency_keys_are_read_again() -> None:
    found = read_keys(keys_json([OF_SCATTER, OF_REMOVAL]))
    assert found[0] == OF_SCATTER
    assert tuple(found[1].counts or ()) == OF_REMOVAL.counts


def test_the_key_of_a_scatter_has_no_counts() -> None:
    """A shard that does not know them reads it."""
    (told,) = orjson.loads(keys_json([OF_SCATTER]))
    assert told == {"key": "k1", "digest": "d1", "sequence": 3, "age": 10}


def test_members_that_are_not_known_are_ignored() -> None:
    told = orjson.loads(keys_json([OF_SCATTER]))[0] | {"later": 1}
    assert read_keys(orjson.dumps([told])) == [OF_SCATTER]


@pytest.mark.parametrize("body", [b"7", b"[7]", b'[{"key": "k"}]'])
def test_what_is_no_list_of_keys_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no Idempotency-Keys"):
        read_keys(body)
