from __future__ import annotations

import pytest

from app.bounded_cache import BoundedCache


def test_what_was_kept_is_found_until_there_is_too_much() -> None:
    cache: BoundedCache[str, int] = BoundedCache(3)
    for number, key in enumerate("abc"):
        cache[key] = number
    assert [cache.get(key) for key in "abcd"] == [0, 1, 2, None]
    cache["d"] = 3
    assert dict(cache) == {"d": 3}


def test_a_key_that_is_there_gets_another_value_and_nothing_is_forgotten() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache["a"], cache["b"] = 1, 2
    cache["a"] = 3
    assert dict(cache) == {"a": 3, "b": 2}


@pytest.mark.parametrize("most", [1, 2, 7])
def test_there_are_never_more_keys_than_the_bound(most: int) -> None:
    cache: BoundedCache[int, int] = BoundedCache(most)
    for number in range(50):
        cache[number] = number
        assert number in cache
        assert len(cache) <= most


def test_what_is_deleted_or_cleared_makes_room() -> None:
    cache: BoundedCache[int, int] = BoundedCache(2)
    cache[1], cache[2] = 1, 2
    assert cache.pop(1) == 1
    cache[3] = 3
    assert set(cache) == {2, 3}
    cache.clear()
    assert not cache
