"""A mixed load on a real service with two workers, some of which are killed all the while, and a judgement of it.

    python -m tests.store.mixed_load SECONDS SEED CACHE_FOLDER [TENSORS]

Every thread has tensors of its own, of which it knows what each must be: it uploads, scatters with Idempotency-Keys,
removes and uploads anew, publishes versions beside each other and moves an alias between them, and reads, over
connections of its own and new ones, to whichever worker has them. Besides, it reads the tensors of other threads, adds
to a few that all share. What is not answered is asked again:
scatters with their keys. Every few seconds a worker is killed, or the whole group, which is then started again.

What must hold: each change that was acknowledged is there, once; one that was not is there or not, and then stays so;
nobody reads a content that is older than the last change acknowledged before; no ETag ever names two contents; an
If-Match with an ETag of an earlier content never holds; no tensor is damaged.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import safetensors.numpy

from app.store import LocalStore
from app.tensors.shape_limits import Limits
from tests.free_port import free_port

ROOT = Path(__file__).parents[2]
THREADS = 6
ITEMS = 16
BUSY = 6
HOT, HOT_ROWS, HOT_UPDATES = 3, 100, 3000
MEMORY = 40
"""How many scatters of a tensor come again, at random."""
BINARY = {"content-type": "application/x-safetensors"}
RAW = {"content-type": "application/octet-stream"}
PORT_OR_STORE_TAKEN = 1
"""The exit code of a start that finds another service, or workers of a killed parent that have not left yet."""
Content = bytes | None
"""The items of a tensor; None where there is none."""


class Lost(Exception):
    """A request was not answered, or refused for the time being."""


class Wrong(AssertionError):
    """What must hold does not."""


class Service:
    """`gathernd serve` with some `flags` on one port and folder, over many lives."""

    def __init__(self, folder: Path, cache: Path, *flags: str) -> None:
        self.folder, self.cache, self.flags = folder, cache, flags
        self.log = folder / "log.txt"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.orphans: list[int] = []
        """Workers whose parent was killed, which still answer for a moment."""

    def start(self) -> None:
        """Start it, and wait until it is ready: again, as a supervisor does, while workers of a killed parent leave."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
        command = [
            str(Path(sys.executable).with_name("gathernd")), "serve", "--workers", "2", "--kernel", "numpy",
            "--port", str(self.port), "--store-dir", str(self.folder / "store"), "--cache-dir", str(self.cache),
            *self.flags,
        ]  # fmt: skip
        end = time.monotonic() + 120
        while not self._ready(command, variables, end):
            assert self.process is not None
            if time.monotonic() > end or self.process.poll() != PORT_OR_STORE_TAKEN:
                raise Wrong(f"the service does not start:\n{self.tail()}")

    def _ready(self, command: Sequence[str], variables: dict[str, str], end: float) -> bool:
        """Whether it becomes ready until `end`, and does not end before."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        while time.monotonic() < end and self.process.poll() is None:
            self.orphans = [each for each in self.orphans if Path(f"/proc/{each}").exists()]
            if self.orphans:
                time.sleep(0.05)
                continue
            with suppress(Lost), closing(Connection(self.port, 5)) as connection:
                # All workers: one that is killed while the service starts ends the start.
                if (
                    connection.ask("GET", "/readyz")[0] == 200
                    and b"gathernd_processes 2.0" in connection.ask("GET", "/metrics")[2]
                ):
                    return True
            time.sleep(0.05)
        return False

    def workers(self) -> list[int]:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def kill_worker(self, rng: random.Random) -> bool:
        """SIGKILL one of the workers, if there is one."""
        found = self.workers()
        if not found:
            return False
        os.kill(rng.choice(found), signal.SIGKILL)
        return True

    def kill(self) -> None:
        """SIGKILL the parent and all workers, each of which has a process group of its own."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts no worker any more
        workers = self.workers()
        for each in (*workers, self.process.pid):
            os.kill(each, signal.SIGKILL)
        self.process.wait()

    def kill_parent(self) -> None:
        """SIGKILL the parent alone, whose workers then stop by themselves."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts no worker that is not in the list
        self.orphans = self.workers()
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if code != 0:
            raise Wrong(f"the stop ended with {code}:\n{self.tail()}")

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class Connection:
    """One connection, made anew when it has broken."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def ask(self, method: str, path: str, body: bytes | None = None, **fields: str) -> tuple[int, Any, bytes]:
        """Status, header and body. Raises Lost."""
        try:
            self._http.request(method, path, body, {name.replace("_", "-"): value for name, value in fields.items()})
            answer = self._http.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise Lost(repr(error)) from None
        if answer.status == 503:
            raise Lost("503")
        return answer.status, answer.headers, content

    def close(self) -> None:
        self._http.close()


class Model:
    """What a tensor of one owner has been and may be.

    `history` is every content that it may have had, in order; all readers may expect `history[least]` or a later one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.history: list[Content] = [None]
        self.least = 0
        self.etag: str | None = None
        self.old_etags: list[str] = []
        self.scatters: list[tuple[str, str, bytes, str]] = []
        """Key, path, body and the answered ETag of the last ones."""

    @property
    def content(self) -> Content:
        return self.history[-1]

    def begin(self, content: Content) -> None:
        """A change to this content is sent next."""
        self.history.append(content)

    def made(self, etag: str | None) -> None:
        """The change that was begun last has been made, for certain."""
        self.least = len(self.history) - 1
        # An upload that was not made is found out to have been, where the content before was the same.
        if self.etag is not None and self.etag != etag:
            self.old_etags = [*self.old_etags[-20:], self.etag]
        self.etag = etag

    def not_made(self) -> None:
        """It has not, for certain."""
        self.history.append(self.history[-2])
        self.least = len(self.history) - 1


class Load:
    """The threads, what they know together, and what they have counted."""

    def __init__(self, service: Service, seed: int, tensors: int, kills: int = 0) -> None:
        self.service, self.seed, self.tensors, self.kills = service, seed, tensors, kills
        self.end = 0.0
        self.counts: Counter[str] = Counter()
        self.stop = Event()
        self.failures: list[BaseException] = []
        self.models = [[Model(f"t{owner}-{k}") for k in range(tensors // THREADS)] for owner in range(THREADS)]
        self.lock = threading.Lock()
        self.etags: dict[str, str] = {}
        self.added = [0] * HOT
        self.sent = [0] * HOT

    def note(self, etag: str, content: bytes) -> None:
        """An ETag and the content that it named."""
        known = self.etags.setdefault(etag, fingerprint(content))
        if known != fingerprint(content):
            raise Wrong(f"the ETag {etag} names two contents")

    def over(self) -> bool:
        """Whether its time is up, and as many workers and groups have been killed as asked for, or one at least."""
        killed = [self.counts[f"{each} killed"] for each in ("workers", "groups", "parents")]
        return time.monotonic() >= self.end and self.kills <= min(killed[:2]) and any(killed)

    def run(self, seconds: float) -> None:
        """Prepare, load, and judge. Raises Wrong."""
        self.service.start()
        with ExitStack() as made:
            works = [made.enter_context(closing(Client(self, number))) for number in range(THREADS)]
            self._load(works, seconds)
        self.service.stop()
        self._judge_files()

    def _load(self, works: Sequence[Client], seconds: float) -> None:
        self._together([work.prepare for work in works])
        self.end = time.monotonic() + seconds
        killer = threading.Thread(target=self._guarded, args=(self._kill,))
        killer.start()
        self._together([work.work for work in works])
        killer.join()
        self._raise()
        self._together([work.judge for work in works])
        self._judge_all(works[0])

    def _together(self, works: Sequence[Any]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._raise()

    def _raise(self) -> None:
        if self.failures:
            raise self.failures[0]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as failure:  # noqa: BLE001  (raised in `_together`)
            self.failures.append(failure)
            self.stop.set()

    def _kill(self) -> None:
        rng = random.Random(self.seed)
        while not self.stop.wait(1 + 3 * rng.random()) and not self.over():
            kind = rng.random()
            if kind < 0.6:
                self.counts["workers killed"] += self.service.kill_worker(rng)
            elif kind < 0.8:
                self.service.kill()
                self.counts["groups killed"] += 1
                self.service.start()
            else:
                self.service.kill_parent()
                self.counts["parents killed"] += 1
                self.service.start()

    def _judge_all(self, client: Client) -> None:
        """Nothing is there but what must be."""
        names: list[str] = []
        after = ""
        while True:
            found = json.loads(client.sure("GET", f"/tensors?limit=1000{after}")[2])
            names += [each["name"] for each in found["tensors"]]
            damaged = [each["name"] for each in found["tensors"] if each.get("damaged")]
            if damaged:
                raise Wrong(f"{damaged} are damaged")
            if found["next"] is None:
                break
            after = f"&after={found['next']}"
        expected = {model.name for models in self.models for model in models if model.content is not None}
        expected |= {f"hot-{k}" for k in range(HOT)}
        if set(names) != expected or len(names) != len(expected):
            raise Wrong(f"listed and gone: {set(names) - expected}; not listed: {expected - set(names)}")
        if aliases := json.loads(client.sure("GET", "/aliases")[2])["aliases"]:
            raise Wrong(f"removed, and there: {aliases}")
        for k in range(HOT):
            total = int(np.frombuffer(client.sure("GET", f"/tensors/hot-{k}/content")[2], np.int64)[7::8].sum())
            if total != self.added[k]:
                raise Wrong(f"hot-{k}: {total - self.added[k]} too many of {self.added[k]}")

    def _judge_files(self) -> None:
        """The checksums of all are right, the folder is tidy, and the log complains of nothing."""
        store = LocalStore(self.service.folder / "store", Limits())
        store.open()
        store.verify(Event(), 0)
        for name in store.names():
            store.metadata(name)
        for folder in ("incoming", "snapshots"):
            if left := list((store.folder / folder).iterdir()):
                raise Wrong(f"{folder}: {left}")
        self.counts["tensors"] = len(store.names())
        store.close()
        for text in ("Traceback", "damaged", "could not be checkpointed", "acknowledged changes are lost"):
            if text in self.service.log.read_text(errors="replace"):
                raise Wrong(f"the log speaks of {text!r}:\n{self.service.tail()}")


class Client:
    """One thread of the load."""

    def __init__(self, load: Load, number: int) -> None:
        self.load, self.number = load, number
        self.rng = random.Random(load.seed * 1000 + number)
        self.models = load.models[number]
        self.connections = [Connection(load.service.port) for _ in range(2)]
        self.counts: Counter[str] = Counter()
        self.serial = 0

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    # Asking

    def ask(self, method: str, path: str, body: bytes | None = None, **fields: str) -> tuple[int, Any, bytes]:
        """One try, over one of several connections. Raises Lost."""
        self.counts["requests"] += 1
        if self.rng.random() < 0.05:
            with closing(Connection(self.load.service.port)) as fresh:
                return fresh.ask(method, path, body, **fields)
        return self.rng.choice(self.connections).ask(method, path, body, **fields)

    def sure(self, method: str, path: str, body: bytes | None = None, **fields: str) -> tuple[int, Any, bytes]:
        """Ask until it is answered."""
        end = time.monotonic() + 120
        while time.monotonic() < end and not self.load.failures:
            try:
                return self.ask(method, path, body, **fields)
            except Lost:
                self.counts["tries without an answer"] += 1
                time.sleep(0.02)
        raise Wrong(f"nobody answers:\n{self.load.service.tail()}")

    def expect(self, answer: tuple[int, Any, bytes], *statuses: int) -> None:
        if answer[0] not in statuses:
            raise Wrong(f"{answer[0]} {answer[2][:300]!r} and not {statuses}")

    # What it does

    def prepare(self) -> None:
        for model in self.models:
            self.put(model)
        if self.number == 0:
            for k in range(HOT):
                zeros = np.zeros((HOT_ROWS, 8), np.int64)
                answer = self.sure("PUT", f"/tensors/hot-{k}?dtype=int64&shape={HOT_ROWS},8", zeros.tobytes(), **RAW)
                self.expect(answer, 200, 201)
        self._count()

    def _count(self) -> None:
        with self.load.lock:
            self.load.counts.update(self.counts)
        self.counts.clear()

    def work(self) -> None:
        ways = (
            (30, self.scatter), (20, self.gather), (10, self.put), (6, self.remove), (8, self.download),
            (6, self.metadata), (8, self.again), (4, self.stale_condition), (10, self.other), (3, self.hot),
            (4, self.roll),
        )  # fmt: skip
        kinds = [way for _, way in ways]
        weights = [weight for weight, _ in ways]
        while not self.load.over() and not self.load.stop.is_set():
            # Half of it goes to a few, which thus meet readers and kills in the midst of changes.
            model = self.rng.choice(self.models[:BUSY] if self.rng.random() < 0.5 else self.models)
            self.rng.choices(kinds, weights)[0](model)
        self._count()

    def put(self, model: Model) -> None:
        # Few different contents, so that many tensors have the same one.
        content = np.full(ITEMS, self.rng.randrange(4), np.int64).tobytes()
        path = f"/tensors/{model.name}?dtype=int64&shape={ITEMS}"
        before = model.content
        model.begin(content)
        try:
            answer = self.ask("PUT", path, content, **RAW)
        except Lost:
            self.counts["tries without an answer"] += 1
            if self.rng.random() < 0.5:
                self.find_out(model, before)
                return
            # It may have been made before: who sends it again makes it once more, of the same content.
            answer = self.sure("PUT", path, content, **RAW)
        self.expect(answer, 200, 201)
        model.made(answer[1]["etag"])
        self.load.note(answer[1]["etag"], content)
        self.counts["puts"] += 1

    def find_out(self, model: Model, before: Content) -> None:
        """Whether a change that was not answered has been made: it then stays so, which later reads show."""
        found, etag = self.read(model)
        if found == model.content:
            model.made(etag)
            self.counts["unanswered and made"] += 1
        elif found == before:
            model.not_made()
            self.counts["unanswered and not made"] += 1
        else:
            raise Wrong(f"{model.name} is neither as before nor as after a change that was not answered")

    def read(self, model: Model) -> tuple[Content, str | None]:
        answer = self.sure("GET", f"/tensors/{model.name}/content")
        self.expect(answer, 200, 404)
        if answer[0] == 404:
            return None, None
        self.load.note(answer[1]["etag"], answer[2])
        return answer[2], answer[1]["etag"]

    def scatter(self, model: Model) -> None:
        if model.content is None:
            return self.put(model)
        places = self.rng.sample(range(ITEMS), self.rng.choice((1, 2, ITEMS)))
        values = np.array([self.rng.randrange(1, 1000) for _ in places], np.int64)
        after = np.frombuffer(model.content, np.int64).copy()
        reduction = self.rng.choice(("add", "none"))
        if reduction == "add":
            after[places] += values
        else:
            after[places] = values
        self.serial += 1
        key = f"{self.number}-{self.serial}"
        path = f"/tensors/{model.name}/scatter?reduction={reduction}"
        body = safetensors.numpy.save({"indices": np.array(places)[:, None], "updates": values})
        fields = {**BINARY, "Idempotency_Key": key}
        if model.etag is not None and self.rng.random() < 0.2:
            fields["If_Match"] = model.etag
        model.begin(after.tobytes())
        answer = self.sure("POST", path, body, **fields)
        self.expect(answer, 200)
        etag = answer[1]["etag"]
        model.made(etag)
        self.load.note(etag, after.tobytes())
        model.scatters = [*model.scatters[-MEMORY:], (key, path, body, etag)]
        self.counts["scatters"] += 1
        return None

    def again(self, model: Model) -> None:
        """A scatter that was answered comes again, whatever has become of the tensor since."""
        if model.scatters:
            key, path, body, etag = self.rng.choice(model.scatters)
            answer = self.sure("POST", path, body, **BINARY, Idempotency_Key=key)
            self.expect(answer, 200)
            if answer[1]["etag"] != etag:
                raise Wrong(f"{model.name}: the key {key} was answered {etag} and is now {answer[1]['etag']}")
            self.counts["scatters that came again"] += 1

    def stale_condition(self, model: Model) -> None:
        """An ETag of an earlier content never holds."""
        if model.old_etags and model.content is not None:
            body = safetensors.numpy.save({"indices": np.array([[0]]), "updates": np.array([1])})
            path = f"/tensors/{model.name}/scatter?reduction=add"
            answer = self.sure("POST", path, body, **BINARY, If_Match=self.rng.choice(model.old_etags))
            self.expect(answer, 412)
            self.counts["stale conditions refused"] += 1

    def remove(self, model: Model) -> None:
        if model.content is None:
            return
        model.begin(None)
        answer = self.sure("DELETE", f"/tensors/{model.name}")
        self.expect(answer, 204, 404)  # 404 to one that came again
        model.made(None)
        self.counts["deletes"] += 1

    def gather(self, model: Model) -> None:
        found, etag = self.gathered(model.name)
        if found != model.content:
            raise Wrong(f"{model.name}: a gather reads another content than the one acknowledged")
        if found is not None and etag != model.etag:
            raise Wrong(f"{model.name}: a gather reads {etag} and not {model.etag}")
        self.counts["gathers"] += 1

    def gathered(self, name: str) -> tuple[Content, str]:
        answer = self.sure("POST", f"/gathernd?tensor={name}", _ALL, **BINARY)
        self.expect(answer, 200, 404)
        if answer[0] == 404:
            return None, ""
        found = safetensors.numpy.load(answer[2])["output"].tobytes()
        etag = answer[1]["x-gathernd-data-etag"]
        self.load.note(etag, found)
        return found, etag

    def roll(self, model: Model) -> None:
        """The next version beside the one before; an alias moves to it, back and forth, and reads through it follow."""
        if model.content is None:
            return
        content = np.full(ITEMS, self.rng.randrange(4), np.int64).tobytes()
        model.begin(content)
        answer = self.sure("PUT", f"/tensors/{model.name}?dtype=int64&shape={ITEMS}&keep=2", content, **RAW)
        self.expect(answer, 200, 201)
        model.made(answer[1]["etag"])
        self.load.note(answer[1]["etag"], content)
        alias, versions = f"live-{model.name}", json.loads(answer[2])["versions"]
        for number in (versions[-1], versions[0], versions[-1]):
            version = f"{model.name}@{number}"
            self.expect(self.sure("PUT", f"/aliases/{alias}", json.dumps({"tensor": version}).encode()), 200, 201)
            known = self.sure("GET", f"/tensors/{version}")
            self.expect(known, 200)
            _, etag = self.gathered(alias)
            if etag != known[1]["etag"]:
                raise Wrong(f"{alias} was moved to {version}, {known[1]['etag']}, and reads {etag}")
        self.expect(self.sure("DELETE", f"/aliases/{alias}"), 204, 404)
        for number in versions[:-1]:
            self.expect(self.sure("DELETE", f"/tensors/{model.name}@{number}"), 204, 404)
        self.counts["rolled"] += 1

    def download(self, model: Model) -> None:
        found, etag = self.read(model)
        if found != model.content or etag != (model.etag if found is not None else None):
            raise Wrong(f"{model.name}: a download reads another content than the one acknowledged")
        self.counts["downloads"] += 1

    def metadata(self, model: Model) -> None:
        answer = self.sure("GET", f"/tensors/{model.name}")
        self.expect(answer, 200 if model.content is not None else 404)
        if answer[0] == 200 and answer[1]["etag"] != model.etag:
            raise Wrong(f"{model.name}: metadata says {answer[1]['etag']} and not {model.etag}")
        self.counts["metadata"] += 1

    def other(self, model: Model) -> None:
        """A tensor that another thread changes meanwhile."""
        model = self.rng.choice(self.load.models[self.rng.randrange(THREADS)][:BUSY])
        least = model.least
        found, _ = self.gathered(model.name)
        if found not in model.history[least:]:
            raise Wrong(f"{model.name}: a reader beside it reads a content that is old, or never was")
        self.counts["gathers beside changes"] += 1

    def hot(self, model: Model) -> None:
        """Many updates of a tensor that all threads add to."""
        k = self.rng.randrange(HOT)
        rows = np.random.default_rng(self.rng.randrange(1 << 30)).integers(0, HOT_ROWS, HOT_UPDATES)
        where = np.stack([rows, np.full(HOT_UPDATES, 7)], 1)
        body = safetensors.numpy.save({"indices": where, "updates": np.ones(HOT_UPDATES, np.int64)})
        self.serial += 1
        key = f"hot-{self.number}-{self.serial}"
        with self.load.lock:
            self.load.sent[k] += HOT_UPDATES
        self.expect(
            self.sure("POST", f"/tensors/hot-{k}/scatter?reduction=add", body, **BINARY, Idempotency_Key=key), 200
        )
        with self.load.lock:
            self.load.added[k] += HOT_UPDATES
            least = self.load.added[k]
        found = np.frombuffer(self.sure("GET", f"/tensors/hot-{k}/content")[2], np.int64)
        if not least <= int(found[7::8].sum()) <= self.load.sent[k]:
            raise Wrong(f"hot-{k}: {found[7::8].sum()} is not from {least} to {self.load.sent[k]}")
        self.counts["scatters of shared tensors"] += 1

    def judge(self) -> None:
        """At the end: every tensor is what it must be, by every way of reading."""
        for model in self.models:
            self.download(model)
            self.gather(model)
            self.metadata(model)
            for _ in range(2):
                self.again(model)
        self._count()


_ALL = safetensors.numpy.save({"indices": np.arange(ITEMS)[:, None]})


def fingerprint(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def run(folder: Path, cache: Path, seconds: float, seed: int, tensors: int = 1100, kills: int = 0) -> dict[str, int]:
    """The counts of a load that was judged right. Raises Wrong.

    It goes on for `seconds`, and until `kills` workers and `kills` groups have been killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    service = Service(folder, cache)
    load = Load(service, seed, tensors, kills)
    try:
        load.run(seconds)
    finally:
        service.end()
    return dict(sorted(load.counts.items()))


def main() -> None:
    seconds, seed, cache, *tensors = sys.argv[1:]
    with tempfile.TemporaryDirectory() as room:
        counts = run(Path(room), Path(cache), float(seconds), int(seed), int(tensors[0]) if tensors else 1100)
    sys.stdout.write(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
