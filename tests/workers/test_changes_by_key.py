"""Changes of tables by key, with two workers: at random against a model, and under readers that must see them whole."""

from __future__ import annotations

import json
import os
import random
import signal
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import pytest

from gathernd import Client, Feature
from tests.conftest import SOAK, samples
from tests.http.server import TWO_WORKERS, Server
from tests.workers.conftest import Start
from tests.workers.load import until
from tests.workers.test_workers import pids

WIDTH = 3
UNIVERSES: dict[str, list[Any]] = {
    "int64": [*range(-20, 20), 2**62, -(2**63)],
    "uint64": [*range(40), 2**64 - 1, 2**63],
    "string": ["", "ü", "a\0b", *(f"{'x' * (number % 7)}{number}" for number in range(40))],
}
Rows = dict[Any, list[float]]


def flat(rows: list[list[float]]) -> list[float]:
    return [item for row in rows for item in row]


class Modelled:
    """A table of each version that is kept, by number, as Python has it; `alias` is a number."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.name, self.alias_name = f"t-{dtype}", f"live-{dtype}"
        self.versions: dict[int, Rows] = {}
        self.newest = 0
        self.alias: int | None = None

    def references(self) -> list[tuple[str, Rows]]:
        """All that stands for a version, with what that has."""
        found = [(f"{self.name}@{number}", rows) for number, rows in self.versions.items()]
        found.append((self.name, self.versions[self.newest]))
        return found if self.alias is None else [*found, (self.alias_name, self.versions[self.alias])]

    def array(self, keys: list[Any]) -> Any:
        return np.array(keys, object if self.dtype == "string" else self.dtype)


class Walk:
    """Random operations on a server, each compared with the model."""

    def __init__(self, server: Server, seed: int) -> None:
        self.some = random.Random(seed)
        self.server = server
        self.client = Client(server.url, retries=10)
        self.http = httpx.Client(base_url=server.url, trust_env=False, timeout=60)
        self.tables = [Modelled(dtype) for dtype in UNIVERSES]
        for table in self.tables:
            self.publish(table)

    def close(self) -> None:
        self.client.close()
        self.http.close()

    def keys(self, table: Modelled, most: int = 6) -> list[Any]:
        return self.some.choices(UNIVERSES[table.dtype], k=self.some.randrange(most + 1))

    def rows(self, count: int) -> list[list[float]]:
        return [[float(self.some.randrange(100)) for _ in range(WIDTH)] for _ in range(count)]

    def publish(self, table: Modelled) -> None:
        universe = UNIVERSES[table.dtype]
        keys = self.some.sample(universe, self.some.randrange(len(universe)))
        rows = self.rows(len(keys))
        array = np.array(rows, np.float32).reshape(-1, WIDTH)
        capacity = self.some.choice([None, len(keys) + 3])
        made = self.client.put(table.name, array, keys=table.array(keys), keep=2, capacity=capacity)
        assert made.version == table.newest + 1
        table.newest = made.version
        table.versions[made.version] = dict(zip(keys, rows, strict=True))
        for number in [*table.versions]:
            if number not in made.versions:
                assert number != table.alias
                del table.versions[number]

    def move_alias(self, table: Modelled) -> None:
        table.alias = self.some.choice([*table.versions])
        self.client.put_alias(table.alias_name, f"{table.name}@{table.alias}")

    def upsert(self, table: Modelled) -> None:
        reference, known = self.some.choice(table.references())
        keys = self.keys(table)
        updates = self.rows(len(keys))
        reduction: Any = self.some.choice(["none", "add", "max"])
        before = len(known)
        for key, update in zip(keys, updates, strict=True):
            old = known.get(key, [0.0] * WIDTH)
            known[key] = update if reduction == "none" else [
                one + other if reduction == "add" else max(one, other) for one, other in zip(old, update, strict=True)
            ]  # fmt: skip
        if self.some.random() < 0.3:
            rows = {"dtype": "float32", "shape": [len(keys), WIDTH], "values": flat(updates)}
            document = {"keys": self.described(table, keys), "updates": rows, "reduction": reduction}
            counts = self.change(reference, "upsert", document)
        else:
            array = np.array(updates, np.float32).reshape(-1, WIDTH)
            done = self.client.upsert(reference, table.array(keys), array, reduction)
            counts = {"rows": done.rows, "inserted": done.inserted}
        assert counts == {"rows": len(known), "inserted": len(known) - before}

    def remove(self, table: Modelled) -> None:
        reference, known = self.some.choice(table.references())
        keys = self.keys(table)
        gone = [known.pop(key) for key in {*keys} if key in known]
        if self.some.random() < 0.3:
            counts = self.change(reference, "remove", {"keys": self.described(table, keys)})
        else:
            done = self.client.remove(reference, table.array(keys))
            counts = {"rows": done.rows, "removed": done.removed, "missing": done.missing}
        assert counts == {"rows": len(known), "removed": len(gone), "missing": len({*keys}) - len(gone)}

    def described(self, table: Modelled, keys: list[Any]) -> dict[str, Any]:
        return {"dtype": table.dtype, "shape": [len(keys)], "values": keys}

    def change(self, reference: str, what: str, document: Any) -> dict[str, int]:
        """A change as JSON, sent again under its key when its worker dies."""
        key = str(self.some.getrandbits(64))
        while True:
            try:
                answer = self.http.post(
                    f"/tensors/{reference}/{what}", content=json.dumps(document), headers={
                        "content-type": "application/json", "idempotency-key": key,
                    },
                )  # fmt: skip
            except httpx.TransportError:
                continue
            assert answer.status_code == 200, answer.text
            return {name: count for name, count in answer.json().items() if name not in ("name", "etag")}

    def look_up(self, table: Modelled) -> None:
        reference, known = self.some.choice(table.references())
        keys = self.keys(table)
        wanted = [known.get(key, [-1.0] * WIDTH) for key in keys]
        found = [key in known for key in keys]
        form = self.some.choice(["gather", "lookup", "json", "inference"])
        if form == "gather":
            result = self.client.gather(reference, keys=table.array(keys), missing="fill", fill_value=-1, found=True)
            assert (result.array.tolist(), result.found.tolist()) == (wanted, found)
        elif form == "lookup":
            feature = Feature(reference, keys=table.array(keys), missing="fill", found=True)
            looked_up = self.client.lookup([feature, feature], fill_value=-1, with_info=True)
            assert looked_up.output.tolist() == [row + row for row in wanted]
        elif form == "json":
            asked = {"data": {"tensor": reference}, "keys": self.described(table, keys), "missing": "fill"}
            output = self.asked("/gather", asked | {"fill_value": -1})["output"]
            assert output["values"] == flat(wanted)
        else:
            inputs = [{
                "name": "keys", "shape": [len(keys)], "data": keys,
                "datatype": "BYTES" if table.dtype == "string" else table.dtype.upper(),
            }]  # fmt: skip
            parameters = {"missing": "fill", "fill_value": "-1"}
            output = self.asked(f"/v2/models/{reference}/infer", {"inputs": inputs, "parameters": parameters})
            assert output["outputs"][0]["data"] == flat(wanted)

    def asked(self, path: str, document: Any) -> Any:
        while True:
            try:
                answer = self.http.post(path, json=document)
            except httpx.TransportError:
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()

    def compare(self, table: Modelled) -> None:
        for reference, known in table.references():
            info = self.client.metadata(reference)
            keys = self.client.get_keys(reference, if_match=info.etag).tolist()
            rows = self.client.get(reference, if_match=info.etag).tolist()
            assert dict(zip(keys, rows, strict=True)) == known
            assert info.shape == (len(known), WIDTH)

    def kill(self, table: Modelled) -> None:
        del table
        os.kill(self.some.choice(pids(self.server)), signal.SIGKILL)
        until(lambda: len(pids(self.server)) == 2, 60, "a worker takes its place")

    def step(self) -> None:
        acts = [self.upsert, self.remove, self.look_up, self.publish, self.move_alias, self.compare, self.kill]
        (act,) = self.some.choices(acts, [40, 25, 40, 1, 2, 3, 0.2])
        act(self.some.choice(self.tables))


@pytest.mark.slow
def test_random_changes_match_a_model(start: Start) -> None:
    with start(*TWO_WORKERS) as server:
        walk = Walk(server, random.randrange(1 << 30) if SOAK else 41)
        try:
            for _ in range(200_000 * SOAK or samples(3_000)):
                walk.step()
            for table in walk.tables:
                walk.compare(table)
        finally:
            walk.close()


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
            for stamp in range(1, 20_000 * SOAK or samples(3_000)):
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
