"""The index from key to row, beside a dict, for all types of keys."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.keys.index_layout import LINE, index_bytes
from app.keys.key_column import KEY_TYPES, KeyColumn, KeyType
from app.keys.key_index import (
    Duplicates,
    IndexDamaged,
    IndexFull,
    KeyIndex,
    aligned_buffer,
    build,
    find,
    hash_keys,
    new_seed,
)
from app.tensors.dtypes import DTYPES
from app.tensors.string_tensor import PackedStrings
from tests.for_each import for_each

pytestmark = pytest.mark.usefixtures("every_codec")

SEED = bytes(range(16))
KEYS: dict[KeyType, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    "uint64": st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1]),
    "string": st.binary(max_size=20)
    | st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0"])
    | st.integers(0, 20).map(lambda size: b"equal prefix" + b"x" * size),
}


def column_of(kind: KeyType, keys: list[Any]) -> KeyColumn:
    return KeyColumn.of_strings(keys) if kind == "string" else KeyColumn.integers(np.array(keys, kind))


def found(index: KeyIndex, column: KeyColumn, wanted: KeyColumn) -> list[int]:
    rows: list[int] = index.find(column, wanted).tolist()
    return rows


@for_each("kind", KEY_TYPES)
@given(data=st.data())
def test_every_key_has_its_row_and_others_have_none(kind: KeyType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEYS[kind], unique=True, max_size=60))
    asked = data.draw(st.lists(KEYS[kind] | (st.sampled_from(keys) if keys else st.nothing()), max_size=30))
    column = column_of(kind, keys)
    index, duplicates = build(column, data.draw(st.binary(min_size=16, max_size=16)))
    assert duplicates == Duplicates()
    rows = {key: row for row, key in enumerate(keys)}
    assert found(index, column, column_of(kind, asked)) == [rows.get(key, -1) for key in asked]


def overflows(index: KeyIndex) -> list[int]:
    """How many keys have passed each bucket."""
    counts: list[int] = index.buffer[LINE:].view("<u8")[::8].tolist()
    return counts


@for_each("kind", KEY_TYPES)
@given(data=st.data())
def test_changes_are_those_of_a_dict(kind: KeyType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEYS[kind], unique=True, max_size=20))
    pool = data.draw(st.lists(KEYS[kind], unique=True, min_size=1, max_size=40))
    index, _ = build(column_of(kind, keys), SEED)
    for _ in range(data.draw(st.integers(1, 15))):
        removes: bool = data.draw(st.booleans())
        if keys and removes:
            gap, last = data.draw(st.integers(0, len(keys) - 1)), len(keys) - 1
            column = column_of(kind, keys)
            assert index.remove(column, np.array([gap])) == 1
            if gap != last:
                assert index.move(column, np.array([last]), np.array([gap])) == 1
            keys[gap] = keys[last]
            keys.pop()
        else:
            new = [key for key in data.draw(st.lists(st.sampled_from(pool), unique=True)) if key not in keys]
            start = len(keys)
            keys += new
            column = column_of(kind, keys)
            if len(keys) > index.capacity:
                with pytest.raises(IndexFull):
                    index.insert(column, start, len(keys))
                index, _ = build(column, new_seed(), 2 * len(keys))
            else:
                assert index.insert(column, start, len(keys)) == Duplicates()
        rows = {key: row for row, key in enumerate(keys)}
        asked = [*pool, *keys]
        assert found(index, column_of(kind, keys), column_of(kind, asked)) == [rows.get(key, -1) for key in asked]
        anew, _ = build(column_of(kind, keys), index.seed(), index.capacity)
        assert overflows(index) == overflows(anew), "searches are longer than in an index that is built anew"


@for_each("kind", KEY_TYPES)
@given(data=st.data())
def test_duplicates_are_rows_that_repeat_a_key_however_an_upload_is_cut(kind: KeyType, data: st.DataObject) -> None:
    pool = data.draw(st.lists(KEYS[kind], unique=True, min_size=1, max_size=30))
    keys = data.draw(st.lists(st.sampled_from(pool), max_size=60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=4)))
    column = column_of(kind, keys)
    index = KeyIndex.create(aligned_buffer(index_bytes(len(keys))), kind, SEED)
    duplicates = Duplicates()
    for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        duplicates += index.insert(column.rows(0, stop), start, stop)
    repeated = [row for row, key in enumerate(keys) if key in keys[:row]]
    assert duplicates == Duplicates(len(repeated), tuple(repeated[:10])) == build(column, SEED)[1]
    assert found(index, column, column) == [keys.index(key) for key in keys]


def in_frames(keys: list[bytes]) -> PackedStrings:
    starts = np.cumsum([0, *(4 + len(key) for key in keys)])[:-1]
    frames = b"".join(len(key).to_bytes(4, "little") + key for key in keys)
    return PackedStrings(DTYPES["string"], (len(keys),), starts, octets=np.frombuffer(frames, np.uint8))


def test_frames_that_are_cut_are_missing_and_read_nothing_outside() -> None:
    column = KeyColumn.of_strings(["", "a", "b" * 30])
    index, _ = build(column, SEED)
    frames = in_frames([b"a", b"b" * 30]).octets
    starts = np.array([0, 5, -1, -(2**63), 2**63 - 1, len(frames) - 4, len(frames), 6])
    wanted = PackedStrings(DTYPES["string"], (len(starts),), starts, octets=frames)
    search = index.search(column, wanted)
    assert find([search], [-1]) == [6]
    assert search.rows.tolist() == [1, 2, *[-1] * 6]


def test_a_reader_beside_a_writer_finds_true_rows_or_none_and_all_when_nothing_changed() -> None:
    column = column_of("int64", list(range(500)))
    index, _ = build(column, SEED)
    sequence, done = [0], Event()

    def write() -> None:
        for first in range(100, 450, 5):
            sequence[0] += 1
            index.remove(column, np.arange(first, first + 50))
            index.insert(column, first, first + 50)
            sequence[0] += 1
        done.set()

    writer = Thread(target=write)
    writer.start()
    while True:
        last, before = done.is_set(), sequence[0]
        rows = found(index, column, column)
        if before % 2 == 0 and before == sequence[0]:
            assert rows == list(range(500))
        assert all(row in (-1, at) for at, row in enumerate(rows))
        if last:
            break
    writer.join()


def test_the_bytes_of_an_index_are_fixed() -> None:
    zero = " " + 16 * "0"
    column = column_of("uint64", [2**64 - 1, 7])
    index, _ = build(column, SEED)
    assert hash_keys(column, SEED).tolist() == [0x823F307311453347, 0x33D5B3229DB273EB]
    header = "676e646b65797331 0100000000000000 0001020304050607 08090a0b0c0d0e0f 0100000000000000" + 3 * zero
    bucket = zero + " 0100000000473345 0200000000eb73b2" + 5 * zero
    assert bytes(index.buffer).hex(" ", 8) == header + bucket


def test_a_file_that_is_no_index_is_refused() -> None:
    index, _ = build(column_of("int64", [1]), SEED)
    whole = np.array(index.buffer)
    for damaged in (whole[:0], whole[:64], whole[:-1], np.concatenate([whole, whole]), np.zeros(128, np.uint8)):
        with pytest.raises(IndexDamaged):
            KeyIndex.open(damaged)


@for_each("kind", KEY_TYPES)
@given(data=st.data())
def test_garbage_in_the_buckets_finds_true_rows_or_none(kind: KeyType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEYS[kind], unique=True, max_size=30))
    column = column_of(kind, keys)
    index, _ = build(column, SEED)
    words = index.buffer[LINE:].view("<u8")
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    torn = data.draw(st.sampled_from(["random", "rows", "passed", "shuffled"]))
    if torn == "random":
        index.buffer[LINE:] = random.integers(0, 256, len(index.buffer) - LINE)
    elif torn == "rows":
        words |= random.integers(0, 2**40, len(words), np.uint64) * random.integers(0, 2, len(words), np.uint64)
    elif torn == "passed":
        words[::8] = 2**64 - 1
    else:
        random.shuffle(words)
    for row, at in zip(found(index, column, column), range(len(keys)), strict=True):
        assert row in (at, -1)
    assert index.remove(column, np.arange(len(keys))) <= len(keys)
    index.move(column, np.arange(len(keys)), np.arange(len(keys))[::-1])
    if len(keys) <= index.capacity:
        with suppress(IndexFull):
            index.insert(column, 0, len(keys))
    found(index, column, column)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=6, max_size=6), st.lists(st.binary(max_size=4), max_size=5))
def test_torn_offsets_of_strings_read_nothing_outside(offsets: list[int], keys: list[bytes]) -> None:
    column = KeyColumn.of_strings(keys)
    index, _ = build(column, SEED, 20)
    for bounds in (np.array(offsets), np.array(offsets).reshape(3, 2)):
        torn = KeyColumn.strings(bounds, np.frombuffer(b"abc", np.uint8))
        assert torn.first_bad_offset() >= 0 or 0 <= offsets[0] <= offsets[1] <= 3
        found(index, torn, column)
        found(index, torn, torn)
        found(index, column, torn)
        index.insert(torn, 0, len(torn))
        index.remove(torn, np.array([-1, 0, 2, 5, 2**62]))
        hash_keys(torn, SEED)


def test_keys_that_collide_without_the_seed_spread_with_it() -> None:
    column = column_of("int64", [number << 40 for number in range(300)])
    seeds = (SEED, bytes(16), new_seed())
    homes = [hash_keys(column, seed) >> np.uint64(58) for seed in seeds]
    for home in homes:
        assert np.bincount(home.astype(np.int64), minlength=64).max() < 20
    assert len({tuple(home.tolist()) for home in homes}) == 3


def keys_alike() -> NDArray[np.int64]:
    """Integers in pairs of neighbors with one fingerprint and one home of two."""
    many = np.arange(60_000)
    hashes = hash_keys(KeyColumn.integers(many), SEED)
    hashes = (hashes & np.uint64(2**24 - 1)) << np.uint64(1) | hashes >> np.uint64(63)
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(np.diff(hashes[order]) == 0)
    pairs = np.stack([order[same], order[same + 1]], axis=1)
    assert len(pairs) > 20
    return np.unique(pairs, axis=0)[:50]


def test_a_row_that_a_reader_does_not_know_hides_no_key_of_its_fingerprint() -> None:
    for other, key in keys_alike().tolist():
        column = column_of("int64", [other, key, -1])
        index, _ = build(column, SEED, 10)
        index.remove(column, np.array([2]))
        index.move(column, np.array([0]), np.array([2]))
        column = column_of("int64", [-2, key, other])
        wanted = column_of("int64", [key, other])
        assert found(index, column, wanted) == [1, 2]
        assert found(index, column.rows(0, 2), wanted) == [1, -1]


def test_keys_of_one_fingerprint_and_one_bucket_are_told_apart() -> None:
    alike = keys_alike().reshape(-1)
    kept = np.unique(alike[::2])
    column = KeyColumn.integers(kept)
    index, duplicates = build(column, SEED, len(kept))
    assert duplicates.total == 0
    rows = {key: row for row, key in enumerate(kept.tolist())}
    assert found(index, column, KeyColumn.integers(alike)) == [rows.get(key, -1) for key in alike.tolist()]
