"""A server with the part of etcd's JSON gateway that the catalogue uses, in etcd's place on machines without it.

Run `python -m tests.cluster.etcd_stand_in PORT FILE`. The tests of the database run against both, which holds it equal
to etcd in what is used. Its records outlast a kill, in FILE; its leases begin anew then, as etcd's do.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from time import monotonic, sleep
from typing import Any

MAX_OPERATIONS = 128
MAX_BYTES = 3 << 19
Json = dict[str, Any]


class Refused(Exception):
    """An answer with an error: `status` of HTTP and `code` of gRPC."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.body = {"error": message, "message": message, "code": code}
        self.status = status


class Records:
    """Keys with value, revision and lease, and the history of changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = Condition()
        self.revision = 1
        self.compacted = 0
        self.keys: dict[str, list[Any]] = {}
        """By the text of a key: value in base64, the revision that wrote it, its lease."""
        self.history: list[tuple[int, Json]] = []
        self.leases: dict[str, tuple[int, float]] = {}
        self.lives: dict[str, list[tuple[int, bool]]] = {}
        """By key, from which revision on it was there, or was gone."""
        if path.exists():
            kept = json.loads(path.read_text())
            self.revision, self.keys = kept["revision"], kept["keys"]
            self.compacted = self.revision
            self.leases = {number: (ttl, monotonic() + ttl) for number, ttl in kept["leases"].items()}
            self.lives = {key: [(revision, True)] for key, (_, revision, _) in self.keys.items()}

    def keep(self) -> None:
        leases = {number: ttl for number, (ttl, _) in self.leases.items()}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({"revision": self.revision, "keys": self.keys, "leases": leases}))
        beside.replace(self.path)

    # All below with `changed` held

    def found(self, asked: Json) -> list[str]:
        first = b64decode(asked["key"]).decode()
        if "range_end" not in asked:
            return [first] if first in self.keys else []
        until = b64decode(asked["range_end"]).decode()
        return sorted(key for key in self.keys if first <= key < until)

    def range(self, asked: Json) -> Json:
        found = self.found(asked)
        least = int(asked.get("min_mod_revision", 0))
        if asked.get("keys_only"):
            kvs = [{"key": b64encode(key.encode()).decode()} for key in self.keys_at(asked)]
        else:
            kvs = [self.key_value(key) for key in found if self.keys[key][1] >= least]
        if asked.get("count_only"):
            kvs = []
        return self.header | ({"kvs": kvs} if kvs else {}) | ({"count": str(len(found))} if found else {})

    def keys_at(self, asked: Json) -> list[str]:
        """The keys that there were at a revision."""
        first, until = (b64decode(asked[name]).decode() for name in ("key", "range_end"))
        revision = int(asked["revision"])
        own = {key: [is_there for at, is_there in lives if at <= revision] for key, lives in self.lives.items()}
        return sorted(key for key, states in own.items() if first <= key < until and states and states[-1])

    @property
    def header(self) -> Json:
        return {"header": {"revision": str(self.revision)}}

    def key_value(self, key: str) -> Json:
        value, revision, _ = self.keys[key]
        return {"key": b64encode(key.encode()).decode(), "mod_revision": str(revision), "value": value}

    def transact(self, asked: Json) -> Json:
        self.check(asked)
        before = self.revision
        events: list[Json] = []
        answer = self.carry_out(asked, events)
        if events:
            self.revision = before + 1
            self.history += [(self.revision, event) for event in events]
            self.keep()
            self.changed.notify_all()
        return self.header | answer

    def check(self, asked: Json, maximum: int = MAX_OPERATIONS) -> None:
        operations, otherwise = asked.get("success", []), asked.get("failure", [])
        count = max(len(asked.get("compare", [])), len(operations), len(otherwise))
        if count > maximum:
            raise Refused(400, 3, "etcdserver: too many operations in txn request")
        for one in operations + otherwise:
            if "request_txn" in one:
                self.check(one["request_txn"], maximum - count)
            lease = one.get("request_put", {}).get("lease")
            if lease is not None and lease not in self.leases:
                raise Refused(404, 5, "etcdserver: requested lease not found")

    def carry_out(self, asked: Json, events: list[Json]) -> Json:
        holds = all(map(self.holds, asked.get("compare", [])))
        responses = [self.operate(one, events) for one in asked.get("success" if holds else "failure", [])]
        return ({"succeeded": True} if holds else {}) | ({"responses": responses} if responses else {})

    def operate(self, one: Json, events: list[Json]) -> Json:
        if "request_txn" in one:
            return {"response_txn": self.carry_out(one["request_txn"], events)}
        if "request_range" in one:
            return {"response_range": self.range(one["request_range"])}
        if "request_delete_range" in one:
            self.remove(b64decode(one["request_delete_range"]["key"]).decode(), events)
            return {"response_delete_range": {}}
        put = one["request_put"]
        key = b64decode(put["key"]).decode()
        self.keys[key] = [put["value"], self.revision + 1, put.get("lease", "0")]
        self.lives.setdefault(key, []).append((self.revision + 1, True))
        events.append({"kv": self.key_value(key)})
        return {"response_put": {}}

    def remove(self, key: str, events: list[Json]) -> None:
        if self.keys.pop(key, None) is not None:
            self.lives[key].append((self.revision + 1, False))
            kv = {"key": b64encode(key.encode()).decode(), "mod_revision": str(self.revision + 1)}
            events.append({"type": "DELETE", "kv": kv})

    def holds(self, compare: Json) -> bool:
        assert compare["target"] == "MOD"
        wanted = int(compare["mod_revision"])
        found = [self.keys[key][1] for key in self.found(compare)] or [0]
        return all(one == wanted if compare["result"] == "EQUAL" else one < wanted for one in found)

    def end_leases(self, numbers: list[str]) -> None:
        for number in numbers:
            self.leases.pop(number, None)
            events: list[Json] = []
            for key in [key for key, one in self.keys.items() if one[2] == number]:
                self.remove(key, events)
            if events:
                self.revision += 1
                self.history += [(self.revision, event) for event in events]
                self.changed.notify_all()
        self.keep()

    def expire(self) -> None:
        while True:
            sleep(0.05)
            with self.changed:
                now = monotonic()
                late = [number for number, (_, end) in self.leases.items() if end < now]
                if late:
                    self.end_leases(late)

    def lease(self, what: str, asked: Json) -> Json:
        if what == "grant":
            number, ttl = str(int.from_bytes(os.urandom(7)) + 1), int(asked["TTL"])
            self.leases[number] = ttl, monotonic() + ttl
            self.keep()
            return self.header | {"ID": number, "TTL": str(ttl)}
        number = asked["ID"]
        if what == "revoke":
            if number not in self.leases:
                raise Refused(404, 5, "etcdserver: requested lease not found")
            self.end_leases([number])
            return self.header
        if number not in self.leases:
            return {"result": self.header | {"ID": number}}
        ttl = self.leases[number][0]
        self.leases[number] = ttl, monotonic() + ttl
        return {"result": self.header | {"ID": number, "TTL": str(ttl)}}

    # Without it

    def watch(self, asked: Json) -> Iterator[Json]:
        first, until = (b64decode(asked[name]).decode() for name in ("key", "range_end"))
        after = int(asked["start_revision"]) - 1
        with self.changed:
            header, is_gone = self.header, after + 1 < self.compacted
        yield header | {"created": True}
        if is_gone:
            yield header | {"canceled": True, "compact_revision": str(self.compacted)}
            return
        while True:
            with self.changed:
                while self.revision <= after:
                    self.changed.wait()
                news = [event for revision, event in self.history if revision > after]
                header, after = self.header, self.revision
            own = [one for one in news if first <= b64decode(one["kv"]["key"]).decode() < until]
            if own:
                yield header | {"events": own}

    def answer(self, path: str, asked: Json) -> Json:
        with self.changed:
            match path:
                case "/v3/kv/range":
                    return self.range(asked)
                case "/v3/kv/txn":
                    return self.transact(asked)
                case "/v3/kv/compaction":
                    self.compacted = int(asked["revision"])
                    self.history = [one for one in self.history if one[0] >= self.compacted]
                    return self.header
                case _:
                    return self.lease(path.removeprefix("/v3/lease/"), asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    records: Records

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = json.loads(body)
        if self.path == "/v3/watch":
            self.stream(asked["create_request"])
            return
        status = 200
        try:
            if len(body) > MAX_BYTES * 4 // 3:
                raise Refused(400, 3, "etcdserver: request is too large")
            answer = self.records.answer(self.path, asked)
        except Refused as refused:
            status, answer = refused.status, refused.body
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, asked: Json) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for one in self.records.watch(asked):
            line = json.dumps({"result": one}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A watcher that goes is no error."""


if __name__ == "__main__":
    Handler.records = Records(Path(sys.argv[2]))
    Thread(target=Handler.records.expire, daemon=True).start()
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
