"""Random operations by key in several threads, each answer compared with a model in Python, to the bit.

A row is a number times the vector of its key, whose items are powers of two. Every reduction keeps that, so a row shows
that it is whole and whose it is, and the model of a version is the number of each key. A thread has tables of its own,
of which it knows all versions. It also reads those of other threads, which must be as last acknowledged, or newer.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Event
from time import sleep
from typing import Any, Generic, TypeVar

import numpy as np

from tests.cluster.keyed_cases import JSON, key_arrays, keys_of
from tests.http.forms import tensor
from tests.http.tensors import RAW, SAFETENSORS
from tests.keys.lookup_forms import ABSENT, FORMS, Caller
from tests.parity.items import Array
from tests.parity.messages import loaded, raw, saved, values

WIDTH = 6
KEYS: dict[str, list[Any]] = {
    "int64": [*range(-20, 20), 2**62, 2**63 - 1, -(2**63)],
    "uint64": [*range(40), 2**63, 2**64 - 1],
    "string": ["", "ü", "a\0b", "a&b=c+%", *(f"{'x' * (number % 7)}{number}" for number in range(40))],
}
DTYPES = "float32", "int64", "float64"
REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "none": lambda _, new: new, "add": operator.add, "mul": operator.mul, "min": min, "max": max,
}  # fmt: skip
State = dict[Any, int]
"""The number of each key."""
T = TypeVar("T")


@cache
def vector(key: Any) -> Array:
    """The row of a key with the number 1."""
    return 2 ** np.array([0, *(octet % 8 for octet in hashlib.md5(repr(key).encode()).digest()[1:WIDTH])])


def rows_of(numbers: Iterable[tuple[Any, int]], dtype: str) -> Array:
    """The rows of keys with these numbers."""
    return np.array([number * vector(key) for key, number in numbers], dtype).reshape(-1, WIDTH)


class Timeline(Generic[T]):
    """What something has been, in order. Readers see `values[known]`, the last one acknowledged, or a newer one."""

    def __init__(self, first: T) -> None:
        self.values, self.known = [first], 0

    @property
    def now(self) -> T:
        """The newest value."""
        return self.values[-1]

    def begin(self, value: T) -> None:
        """This value is asked for next."""
        self.values.append(value)

    def made(self) -> None:
        """The newest value was acknowledged."""
        self.known = len(self.values) - 1


class Version(Timeline[State]):
    """What a version of a table has been, and the ETags that its changes were answered."""

    def __init__(self, first: State) -> None:
        super().__init__(first)
        self.etags: list[str] = []


class Table:
    """A table, whose versions go by number; `current` is what its name stands for, `live` what its alias does."""

    def __init__(self, owner: int, key_type: str) -> None:
        self.key_type = key_type
        self.dtype = DTYPES[(owner + len(key_type)) % len(DTYPES)]
        self.name, self.alias = f"t{owner}-{key_type}", f"live{owner}-{key_type}"
        self.versions: dict[int, Version] = {}
        self.current, self.live = Timeline(Version({})), Timeline(Version({}))
        self.answered = deque[tuple[Version, tuple[str, bytes, str], dict[str, str], dict[str, int]]](maxlen=40)
        """The last changes: the version, the request with its Idempotency-Key, and what was counted."""

    def references(self) -> list[tuple[str, Version]]:
        """All that names a version, and the version."""
        numbered = [(f"{self.name}@{number}", version) for number, version in self.versions.items()]
        return [(self.name, self.current.now), (self.alias, self.live.now), *numbered]

    def array(self, keys: list[Any]) -> Array:
        """Keys as an array."""
        return np.array(keys, object if self.key_type == "string" else self.key_type)

    def rows(self, keys: list[Any], state: State) -> list[bytes]:
        """The rows that a lookup of `keys` answers."""
        absent = np.full(WIDTH, ABSENT, self.dtype).tobytes()
        made = iter(rows_of([(key, state[key]) for key in keys if key in state], self.dtype))
        return [next(made).tobytes() if key in state else absent for key in keys]


class Walker:
    """One thread's operations. `at_once` says whether a change of a table shows at once, or in each range by itself."""

    def __init__(self, caller: Caller, number: int, seed: int, *, at_once: bool) -> None:
        self.caller, self.number, self.at_once = caller, number, at_once
        self.some = random.Random(f"{seed}-{number}")
        self.tables = [Table(number, key_type) for key_type in KEYS]
        self.others: list[Table] = []
        self.counts = Counter[str]()
        self.steps = self.serial = 0

    def prepare(self) -> None:
        """Publish the first versions."""
        for table in self.tables:
            self.publish(table)
            self.move_alias(table)

    def step(self) -> None:
        """Do one of the operations."""
        acts = {
            self.change: 40, self.look_up: 36, self.look_at_others: 14, self.again: 4, self.stale_condition: 2,
            self.publish: 1, self.move_alias: 2, self.download: 1,
        }  # fmt: skip
        (act,) = self.some.choices([*acts], [*acts.values()])
        act(self.some.choice(self.tables))
        self.counts[act.__name__] += 1
        self.steps += 1

    def judge(self) -> None:
        """Read all tables whole, by everything that names them."""
        for table in self.tables:
            for reference, version in table.references():
                self._download(table, reference, version)
                for form in FORMS:
                    keys = KEYS[table.key_type]
                    assert self._asked(table, reference, keys, form) == table.rows(keys, version.now), (form, reference)

    def publish(self, table: Table) -> None:
        """Make the next version. An upload that is sent again may make two with the same rows."""
        universe = KEYS[table.key_type]
        state = {key: self._number() for key in self.some.sample(universe, self.some.randrange(len(universe)))}
        arrays = key_arrays([*state], table.key_type) | {"data": rows_of(state.items(), table.dtype)}
        capacity = f"&capacity={len(state) + 3}" if self.at_once and self.some.random() < 0.5 else ""
        version = Version(state)
        table.current.begin(version)
        told = self.caller.sure("PUT", f"/tensors/{table.name}?keep=2{capacity}", saved(arrays), SAFETENSORS).json()
        table.current.made()
        known = table.versions | {told["version"]: version}
        table.versions = {number: known.get(number) or Version(state) for number in told["versions"]}
        assert table.current.now in table.versions.values()
        assert not table.live.known or table.live.now in table.versions.values()

    def move_alias(self, table: Table) -> None:
        """Let the alias name any version."""
        number = self.some.choice([*table.versions])
        table.live.begin(table.versions[number])
        body = json.dumps({"tensor": f"{table.name}@{number}"}).encode()
        self.caller.sure("PUT", f"/aliases/{table.alias}", body)
        table.live.made()

    def change(self, table: Table) -> None:
        """Upsert or remove some keys, some of them twice."""
        reference, version = self.some.choice(table.references())
        keys, before = self._keys(table), version.now
        if self.some.random() < 0.65:
            reduction = self.some.choice([*REDUCTIONS])
            number = self.some.randrange(3) if reduction == "mul" else self._number()
            after = dict(before)
            for key in keys:
                after[key] = REDUCTIONS[reduction](after.get(key, 0), number)
            counted = {"rows": len(after), "inserted": len(after) - len(before)}
            updates = rows_of([(key, number) for key in keys], table.dtype)
            if reduction == "mul":
                updates[:] = number
            sent = self._change(table, f"/tensors/{reference}/upsert", keys, updates, reduction)
        else:
            after = {key: number for key, number in before.items() if key not in keys}
            gone = len(before) - len(after)
            counted = {"rows": len(after), "removed": gone, "missing": len({*keys}) - gone}
            sent = self._change(table, f"/tensors/{reference}/remove", keys)
        self.serial += 1
        idempotency_key = {"idempotency-key": f"{self.number}-{self.serial}"}
        version.begin(after)
        told = self.caller.sure("POST", *sent, idempotency_key).json()
        version.made()
        assert {name: told[name] for name in counted} == counted, (sent, told, counted)
        if self.at_once:
            assert told["etag"] not in version.etags
            version.etags.append(told["etag"])
        table.answered.append((version, sent, idempotency_key, counted))

    def again(self, table: Table) -> None:
        """Send a change again that was answered: the answer is the same, and nothing changes."""
        if not table.answered:
            return
        version, sent, idempotency_key, counted = self.some.choice(table.answered)
        answer = self.caller.ask("POST", *sent, idempotency_key)
        told = answer.json()
        if not self.at_once and version not in table.versions.values():
            assert told["code"] == "precondition_failed", told
            return
        same = counted if self.at_once else counted.keys() - {"rows"}  # ranges without these keys have changed since
        assert answer.is_success, told
        assert all(told[name] == counted[name] for name in same), (sent, told, counted)

    def stale_condition(self, table: Table) -> None:
        """Send a change on condition of an ETag of an earlier content, which never holds."""
        reference, version = self.some.choice(table.references())
        if len(version.etags) > 1:
            path, body, kind = self._change(table, f"/tensors/{reference}/remove", KEYS[table.key_type])
            answer = self.caller.ask("POST", path, body, kind, {"if-match": self.some.choice(version.etags[:-1])})
            assert answer.json()["code"] == "precondition_failed", answer.text

    def look_up(self, table: Table) -> None:
        """Look up some keys of one's own table."""
        reference, version = self.some.choice(table.references())
        keys, form = self._keys(table), self.some.choice([*FORMS])
        found = self._asked(table, reference, keys, form)
        assert found == table.rows(keys, version.now), (form, reference, keys, found, version.now)

    def look_at_others(self, _: Table) -> None:
        """Look up some keys of a table that another thread changes."""
        table = self.some.choice(self.others)
        reference, named = self.some.choice([(table.name, table.current), (table.alias, table.live)])
        first = named.known
        known = {id(version): version.known for version in named.values[first:]}
        keys, form = self._keys(table), self.some.choice([*FORMS])
        found = self._asked(table, reference, keys, form)
        states = [state for one in named.values[first:] for state in one.values[known.get(id(one), 0) :]]
        allowed = [table.rows(keys, state) for state in states]
        if self.at_once:
            assert found in allowed, (form, reference, keys, found, states)
        for row, choices in zip(found, zip(*allowed, strict=True), strict=True):
            assert row in choices, (form, reference, keys, found, states)

    def download(self, table: Table) -> None:
        """Download a version of one's own table."""
        self._download(table, *self.some.choice(table.references()))

    def _download(self, table: Table, reference: str, version: Version) -> None:
        path, state = f"/tensors/{reference}", version.now
        content = self.caller.sure("GET", f"{path}/content", fields={"accept": SAFETENSORS}).content
        keys, rows = keys_of(content, table.key_type), loaded(content)[0]["data"]
        assert len(keys) == len(state), (reference, keys, state)
        assert {*keys} == state.keys(), (reference, keys, state)
        assert rows.tobytes() == rows_of([(key, state[key]) for key in keys], table.dtype).tobytes()
        assert self.caller.sure("GET", f"{path}/content", fields={"accept": RAW}).content == rows.tobytes()
        assert self.caller.sure("GET", f"{path}/keys", fields={"accept": RAW}).content == raw(table.array(keys))
        assert self.caller.sure("GET", path).json()["shape"] == [len(keys), WIDTH]

    def _asked(self, table: Table, reference: str, keys: list[Any], form: str) -> list[bytes]:
        rows, found = FORMS[form](self.caller, reference, table.array(keys))
        assert (rows.dtype.name, rows.shape) == (table.dtype, (len(keys), WIDTH)), form
        assert found.tolist() == (rows[:, 0] != ABSENT).tolist(), (form, reference, keys, rows, found)
        return [row.tobytes() for row in rows]

    def _change(
        self, table: Table, path: str, keys: list[Any], updates: Array | None = None, reduction: str = ""
    ) -> tuple[str, bytes, str]:
        """Path, body and content type of a change in JSON or safetensors."""
        if self.some.random() < 0.5:
            arrays = key_arrays(keys, table.key_type) | ({} if updates is None else {"updates": updates})
            return path if updates is None else f"{path}?reduction={reduction}", saved(arrays), SAFETENSORS
        asked: dict[str, Any] = {"keys": tensor(table.key_type, [len(keys)], keys)}
        if updates is not None:
            asked |= {"updates": tensor(table.dtype, updates.shape, values(updates)), "reduction": reduction}
        return path, json.dumps(asked).encode(), JSON

    def _keys(self, table: Table) -> list[Any]:
        return self.some.choices(KEYS[table.key_type], k=self.some.randrange(8))

    def _number(self) -> int:
        self.serial += 1
        return self.serial % 1000 + 1


def walk(walkers: Sequence[Walker], count: int, every: int, kill: Callable[[int], object]) -> Counter[str]:
    """Let walkers take `count` steps together, `kill` after each `every` of them, and judge; the counts.

    Raises what one of them raises.
    """
    stop = Event()

    def all_of(walker: Walker) -> None:
        try:
            for _ in range(count // len(walkers)):
                if not stop.is_set():
                    walker.step()
        except BaseException:
            stop.set()
            raise

    for walker in walkers:
        walker.prepare()
        walker.others = [table for other in walkers if other is not walker for table in other.tables]
    with ThreadPoolExecutor(len(walkers)) as pool:
        running = [pool.submit(all_of, walker) for walker in walkers]
        kills = 0
        try:
            while not all(each.done() for each in running):
                if sum(walker.steps for walker in walkers) >= (kills + 1) * every:
                    kill(kills)
                    kills += 1
                sleep(0.005)
        finally:
            stop.set()
        for each in running:
            each.result()
        list(pool.map(Walker.judge, walkers))
    total = sum((walker.counts for walker in walkers), Counter[str]())
    lost = sum(walker.caller.lost for walker in walkers)
    return total + Counter({"operations": total.total(), "kills": kills, "tries without an answer": lost})
