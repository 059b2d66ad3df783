"""A cluster on Ray: detached actors that Ray restarts, for the coordinator and for each shard's process.

The coordinator's records are in the store of Ray's head (GCS); with GCS fault tolerance (Redis) they outlive it. Ray
carries the protocol's messages, never a row. The only module that imports Ray, which the extra `cluster` brings; what
actors are given is plain values. All functions but `connect` need Ray to be connected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import count as count_from
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from uuid import uuid4

import orjson
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.run_coordinator import KEPT, CoordinatorRunner
from app.cluster.shard.shard_agent import ShardAgent
from app.cluster.shard.shard_http import ShardClient
from app.cluster.shard.shard_process import ShardProcess, ShardSettings, capacity_of
from app.cluster.shard_tls import ShardTls
from app.imports.source_urls import AllowedSources, parse_prefix

NAMESPACE: Final = "gathernd"
COORDINATOR: Final = "gathernd-coordinator"
SHARD: Final = "gathernd-shard-"
"""What the names of shards' actors begin with; the machine's name in the map follows."""
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 1.0
CALL_S: Final = 10.0
"""How long a call of an actor may take beyond what it waits for."""
_KEYS: Final = NAMESPACE.encode()
_PREFIX: Final = b"gathernd:record:"
_WANTED: Final = b"gathernd:shards"
TEND_S: Final = 5.0
"""How often the coordinator looks for shards that are missing."""
logger = logging.getLogger(__name__)


class HeadRecords:
    """A coordinator's records in the store of Ray's head, see `run_coordinator.Records`. Blocks; raises OSError."""

    def latest(self) -> bytes | None:
        """The record with the highest number, None where there is none."""
        found = _ask(internal_kv._internal_kv_list, _PREFIX)
        numbers = [int(key.removeprefix(_PREFIX)) for key in found]
        return self.find(max(numbers)) if numbers else None

    def find(self, number: int) -> bytes | None:
        """The record of a number, None where there is none; b"" where it is an old one."""
        found: bytes | None = _ask(internal_kv._internal_kv_get, _key(number))
        return found

    def create(self, number: int, record: bytes) -> bytes | None:
        """Create a record: None, or the record that has this number already, which may be this one, asked for twice."""
        if _ask(internal_kv._internal_kv_put, _key(number), record, overwrite=False):
            return self.find(number)
        if number > KEPT:
            _ask(internal_kv._internal_kv_put, _key(number - KEPT), b"", overwrite=True)
        return None


def _key(number: int) -> bytes:
    return _PREFIX + b"%d" % number


def _ask(function: Any, *arguments: object, **options: object) -> Any:
    try:
        return function(*arguments, namespace=_KEYS, **options)
    except (RayError, RuntimeError, TimeoutError) as error:
        raise OSError(f"the head of the Ray cluster does not answer: {error}") from error


def run_at_rays_niceness() -> None:
    """Take the niceness of Ray's own process, where this user may, for all threads of an actor and what it starts.

    Ray starts its workers at niceness 15 unless RAY_worker_niceness says otherwise where it is started: on a machine
    with other work a shard would hardly answer.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, os.getppid())
    try:
        for thread in Path("/proc/self/task").glob("*"):
            with suppress(ProcessLookupError):  # it has just ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    except PermissionError:
        logger.warning("an actor runs at niceness %d: start Ray with RAY_worker_niceness=%d", os.nice(0), niceness)


class CoordinatorActor:
    """The actor: one call, `exchange`, carries the protocol. It ends, for Ray to restart it, where another coordinator
    has taken over. `key` is the key that shards are asked with.
    """

    def __init__(self, options: dict[str, Any], key: str | None = None) -> None:
        run_at_rays_niceness()
        self._options = ClusterOptions(**options)
        self._key = key
        self._runner: CoordinatorRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._tending: asyncio.Task[None] | None = None

    async def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float = 0.0) -> list[bytes]:
        """See `CoordinatorRunner.exchange`."""
        return await self._running().exchange(sender, texts, wait_s)

    async def key(self) -> str | None:
        """The key that shards are asked with."""
        return self._key

    async def options(self) -> dict[str, Any]:
        """The options that it was started with."""
        return asdict(self._options)

    async def status(self) -> bytes:
        """What `cluster_status.status_of` says, as JSON."""
        return orjson.dumps(self._running().status())

    async def _tend(self) -> None:
        """Start shards on machines that come; those that were drained are left alone."""
        while True:
            await asyncio.sleep(TEND_S)
            assert self._runner is not None
            drained = self._runner.coordinator.state.draining
            try:
                spec = await asyncio.to_thread(shards_wanted)
                if spec is not None:
                    await asyncio.to_thread(start_shards, spec, self._key, drained)
            except (OSError, RayError, ValueError) as error:  # an actor that has just ended is a ValueError of Ray's
                logger.warning("shards that may be missing are not started yet: %s", error)
            except Exception:
                logger.exception("shards that may be missing are not started yet")

    def _running(self) -> CoordinatorRunner:
        if self._runner is None:
            self._tending = asyncio.create_task(self._tend())
            self._runner = CoordinatorRunner(uuid4().hex, self._options, HeadRecords())
            self._task = asyncio.create_task(self._runner.run())
        assert self._task is not None
        if self._task.done():
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                logger.error("the coordinator has failed", exc_info=error)
            os._exit(1)  # an actor that ends by itself in Ray's way is not started again
        return self._runner


def start_coordinator(options: ClusterOptions, key: str | None = None, **actor_options: Any) -> Any:
    """The coordinator's actor, started where there is none. It outlives the caller."""
    made = ray.remote(CoordinatorActor).options(
        name=COORDINATOR,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=1000,
        num_cpus=0,
        get_if_exists=True,
        **actor_options,
    )
    return made.remote(asdict(options), key)


class ActorLink:
    """The link to the coordinator by calls of its actor; see `coordinator_link.CoordinatorLink`."""

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        """See `CoordinatorRunner.exchange`. Raises OSError."""
        found: list[bytes] = self._call("exchange", wait_s, sender, list(texts), wait_s)
        return found

    def key(self) -> str | None:
        """The key that shards are asked with. Raises OSError."""
        found: str | None = self._call("key", 0.0)
        return found

    def status(self) -> Any:
        """The cluster as `gathernd cluster status` shows it. Raises OSError."""
        for left in reversed(range(_ATTEMPTS)):  # the actor may be being restarted
            try:
                return orjson.loads(self._call("status", 0.0))
            except OSError:
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def options(self) -> ClusterOptions:
        """The options that the coordinator was started with. Raises OSError."""
        found = self._call("options", 0.0)
        return ClusterOptions(**{one.name: found[one.name] for one in fields(ClusterOptions) if one.name in found})

    def close(self) -> None:
        """It holds nothing."""

    @staticmethod
    def _call(method: str, wait_s: float, *arguments: object) -> Any:
        try:
            actor = ray.get_actor(COORDINATOR, namespace=NAMESPACE)
            return ray.get(getattr(actor, method).remote(*arguments), timeout=wait_s + CALL_S)
        except (RayError, GetTimeoutError, ValueError, RuntimeError, ConnectionError) as error:
            raise OSError(f"the coordinator does not answer: {error}") from None


class ShardActor:
    """Looks after the `gathernd serve` of one shard, and tells the coordinator what it has.

    The process outlives the actor, and the actor that Ray starts in its place adopts it. It stays on its machine.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        max_bytes: int | None,
        flags: Sequence[str],
        key: str | None,
        tls: Mapping[str, str] | None = None,
        import_from: Sequence[str] = (),
    ) -> None:
        run_at_rays_niceness()
        host = ray.util.get_node_ip_address()
        own = Path(folder) / name
        files = None if tls is None else ShardTls(**tls)
        self._process = ShardProcess(ShardSettings(host, own, key, max_bytes, tuple(flags), files))
        self._stop = Event()
        self._threads: list[Thread] = []
        self._name, self._folder, self._key = name, own, key
        self._max_bytes = max_bytes
        self._allowed = AllowedSources([parse_prefix(text) for text in import_from])
        self._thread = Thread(target=self._run, name="shard", daemon=True)
        self._thread.start()

    def place(self) -> dict[str, Any]:
        """Where it runs: its node of the Ray cluster, and the process id of its service, None before its start."""
        return {"node_id": ray.get_runtime_context().get_node_id(), "pid": self._process.pid}

    def stop(self) -> None:
        """End its service; the actor itself is then to be killed."""
        self._stop.set()
        self._thread.join(30)
        self._process.stop()

    def _run(self) -> None:
        try:
            self._process.begin()
            self._process.wait_until_ready(self._stop)
            address = self._process.address
            has = sum(one.size for one in ShardClient(address, self._key, tls=self._process.tls).stored())
            free = shutil.disk_usage(self._folder).free
            capacity = capacity_of(has + free if self._max_bytes is None else self._max_bytes)
            agent = ShardAgent(
                self._name, address, self._folder, capacity, ActorLink(), self._key, self._process.tls, self._allowed
            )
            telling = Thread(target=agent.run, args=(self._stop,), name="agent", daemon=True)
            telling.start()
            while not self._stop.wait(0.5):
                self._process.look()
                if self._process.address != address or not telling.is_alive():
                    raise RuntimeError("the shard's port is taken, or its agent has ended")
        except Exception:
            if not self._stop.is_set():
                logger.exception("the shard %s is looked after anew", self._name)
                os._exit(1)


def connect(address: str) -> None:
    """Connect to the Ray cluster at `address`, as `ray.init` takes it. Raises OSError."""
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RayError, RuntimeError, ValueError, TimeoutError) as error:
        raise OSError(f"no Ray cluster answers at {address!r}: {error}") from None


def shard_actors() -> dict[str, Any]:
    """The actors of shards by the shards' names."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(one["name"] for one in found if one["namespace"] == NAMESPACE and one["name"].startswith(SHARD))
    return {name.removeprefix(SHARD): ray.get_actor(name, namespace=NAMESPACE) for name in names}


@dataclass(frozen=True, slots=True)
class ShardsWanted:
    """Which shards there are to be: `count` in all, one for each machine where that is None; the rest is of each."""

    count: int | None
    folder: str
    max_bytes: int | None
    flags: tuple[str, ...]
    tls: ShardTls | None = None
    import_from: tuple[str, ...] = ()
    """Prefixes of URLs from which shards may read again what was imported."""


def want_shards(wanted: ShardsWanted | None) -> None:
    """Have the coordinator start shards that are missing, from now on; None: no more."""
    _ask(
        internal_kv._internal_kv_put, _WANTED, orjson.dumps(None if wanted is None else asdict(wanted)), overwrite=True
    )


def shards_wanted() -> ShardsWanted | None:
    """What `want_shards` was told last. Raises OSError."""
    found: dict[str, Any] | None = orjson.loads(_ask(internal_kv._internal_kv_get, _WANTED) or b"null")
    if found is None:
        return None
    known = {one.name: found[one.name] for one in fields(ShardsWanted) if one.name in found}
    tls = known.get("tls")
    lists = {name: tuple(known[name]) for name in ("flags", "import_from") if name in known}
    known |= lists | {"tls": None if tls is None else ShardTls(**tls)}
    return ShardsWanted(**known)


def start_shards(spec: ShardsWanted, key: str | None, without: Collection[str] = ()) -> list[str]:
    """The shards that are missing: the names of those that are new, none of which is in `without`. Raises OSError."""
    actors = shard_actors()
    found = places(actors)
    for _ in range(_ATTEMPTS):  # one that is being restarted has its place already
        if len(found) == len(actors):
            break
        time.sleep(_PAUSE_S)
        found = places(actors)
    else:
        raise OSError(f"these shards' actors do not answer: {', '.join(sorted(actors.keys() - found.keys()))}")
    taken = [place["node_id"] for place in found.values()]
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    nodes = sorted(hosts)
    if spec.count is None:
        wanted = [node for node in nodes if node not in taken]
    else:
        used = {node: taken.count(node) for node in nodes}
        wanted = []
        for _ in range(spec.count - len(actors)):
            node = min(nodes, key=lambda one: (used[one], one))
            used[node] += 1
            wanted.append(node)
    made: list[str] = []
    more = (None if spec.tls is None else asdict(spec.tls), list(spec.import_from))
    for node in wanted:
        # Of its machine, so that the next start on it finds the folder again.
        host = re.sub("[^A-Za-z0-9._-]", "-", hosts[node])[:40]
        name = next(one for one in (f"{host}-{number}" for number in count_from()) if one not in (*actors, *made))
        if name in without:
            continue
        ray.remote(ShardActor).options(
            name=f"{SHARD}{name}",
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=8,
            num_cpus=0,
            get_if_exists=True,
            # Where its folder is: when the machine is lost the actor is too, and others get its ranges.
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(name, spec.folder, spec.max_bytes, list(spec.flags), key, *more)
        made.append(name)
    return made


def places(actors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the actors of shards say of where they are; those that do not answer are left out."""
    asked = {name: actor.place.remote() for name, actor in actors.items()}
    found = {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer, timeout=CALL_S)
        except RayError:
            continue
    return found


def stop_shard(name: str) -> None:
    """End a shard: its service, then its actor. What it stored stays on the disk."""
    actor = shard_actors().get(name)
    if actor is None:
        return
    try:
        ray.get(actor.stop.remote(), timeout=60)
    except RayError as error:
        logger.warning("the shard %s did not end by itself: %s", name, error)
    ray.kill(actor, no_restart=True)


def stop_coordinator() -> None:
    """End the coordinator's actor. Its records stay."""
    try:
        ray.kill(ray.get_actor(COORDINATOR, namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return
