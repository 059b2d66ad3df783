"""Run a cluster's processes on Ray, as detached actors that Ray restarts: one per shard, and one that supervises them.

This is the only module that imports Ray (extra `cluster`), and it uses only Ray's public interface. Ray keeps track of
the machines and starts processes on them. The processes coordinate through the catalogue. All functions except
`connect` require a connection to Ray.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count as count_from
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import open_database
from app.cluster.catalogue.transitions import mark_lost
from app.cluster.child_process import ChildProcess, is_live
from app.cluster.shard.shard_folder import ShardFolder
from app.cluster.shard_tls import ShardTls, client_context
from app.errors import GatherError
from app.store.files.whole_file import write_whole_file

NAMESPACE: Final = "gathernd"
LAUNCHER: Final = "gathernd-launcher"
SHARD: Final = "gathernd-shard-"
"""Prefix of the actors' names. The shard's name, `@` and the ID of its Ray node follow it."""
LOG: Final = "serve.log"
SUPERVISION_S: Final = 1.0
"""Seconds between checks of the machines."""
STOP_S: Final = 60.0
_CALL_S: Final = 10.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """The processes to run: `count` shards of the cluster at `cluster`, or one per machine if `count` is None.

    Each shard's store is in the subfolder of `folder` that is named after the shard. A store may grow to `max_bytes`,
    or to the disk's free space if `max_bytes` is None. `flags` are additional flags for each shard's `gathernd serve`
    command. If `tls` is set, all connections to shards use TLS.
    """

    cluster: str
    folder: str
    count: int | None = None
    max_bytes: int | None = None
    flags: tuple[str, ...] = ()
    tls: ShardTls | None = None
    metrics: str = ""
    """HOST:PORT at which the reconciler serves its metrics, or "" for no metrics."""

    @staticmethod
    def from_values(values: Mapping[str, Any]) -> Launch:
        """Build a launch from the values of `asdict`."""
        tls = values["tls"]
        made = {**values, "flags": tuple(values["flags"]), "tls": None if tls is None else ShardTls(**tls)}
        return Launch(**made)


class ShardActor:
    """Keep the `gathernd serve --shard` process of one shard running on its machine until the actor ends."""

    def __init__(self, name: str, host: str, values: dict[str, Any]) -> None:
        use_ray_niceness()
        launch = Launch.from_values(values)
        self._folder = Path(launch.folder) / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port_file = self._folder / "port"
        self._name, self._host, self._launch = name, host, launch
        self._tls = None if launch.tls is None else client_context(Path(launch.tls.authorities))
        self._port = 0
        self._child = ChildProcess(self._command, self._folder / LOG, self._is_live)
        self._stop = Event()
        self._thread = Thread(target=self._child.run, args=(self._stop,), name="shard")
        self._thread.start()

    def pid(self) -> int | None:
        """Return the process ID of the shard's service, or None if it has not been started."""
        return self._child.pid

    def problem(self) -> str:
        """Return the reason why the shard is not serving, or "" if it is serving and has reported no problem."""
        log = f"its log is {self._folder / LOG} on {self._host}"
        told = ShardFolder(self._folder / "store").read_problem()
        return f"{told}; {log}" if told else "" if self._is_live() else f"it does not answer; {log}"

    def stop(self) -> None:
        """Stop the service gracefully. The caller then kills the actor."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _command(self) -> Sequence[str]:
        launch = self._launch
        with suppress(OSError, ValueError):
            self._port = int(self._port_file.read_bytes())
        self._port = free_port(self._host, self._port)
        write_whole_file(self._port_file, b"%d" % self._port)
        command = [
            sys.executable, "-m", "app.cli", "serve", "--cluster", launch.cluster, "--shard", "--node", self._name,
            "--host", self._host, "--port", str(self._port), "--store-dir", str(self._folder / "store"),
        ]  # fmt: skip
        if launch.max_bytes is not None:
            command += ["--max-store-bytes", str(launch.max_bytes)]
        if launch.tls is not None:
            command += ["--tls-cert", launch.tls.certificate, "--cluster-ca", launch.tls.authorities]
            command += ["--tls-key", launch.tls.key] if launch.tls.key else []
        return [*command, *launch.flags]

    def _is_live(self) -> bool:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return is_live(f"{host}:{self._port}", self._tls)


class LauncherActor:
    """Keep a reconciler running, start shards on new machines, and give up the shards of lost machines."""

    def __init__(self, values: dict[str, Any]) -> None:
        use_ray_niceness()
        self._launch = launch = Launch.from_values(values)
        authorities = None if launch.tls is None else Path(launch.tls.authorities)
        self._client = CatalogueClient(open_database(launch.cluster, authorities))
        self._places: dict[str, str] = {}
        """The Ray node of each shard. A shard's entry is removed once its machine is lost and the shard has been given
        up.
        """
        self._stop = Event()
        reconcile = [sys.executable, "-m", "app.cli", "cluster", "reconcile", "--cluster", launch.cluster]
        if authorities is not None:
            reconcile += ["--cluster-ca", str(authorities)]
        if launch.metrics:
            reconcile += ["--metrics", launch.metrics]
        self._threads = [
            Thread(target=ChildProcess(lambda: reconcile).run, args=(self._stop,), name="reconciler"),
            Thread(target=self._supervise, name="tend"),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the reconciler gracefully. The caller then kills the actor."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_S)
        self._client.database.close()

    def _supervise(self) -> None:
        while not self._stop.wait(SUPERVISION_S):
            try:
                self._check_machines()
            except (OSError, GatherError, RayError, ValueError) as error:  # ValueError: an actor has just ended
                logger.warning("the machines cannot be supervised now: %s", error)
            except Exception:
                logger.exception("the machines cannot be supervised now")

    def _check_machines(self) -> None:
        nodes = ray.nodes()
        machines = {node["NodeID"]: node for node in nodes if node["Alive"]}
        # Ray may temporarily omit a machine from its list, so a machine counts as gone only if it is listed as dead.
        gone = {node["NodeID"] for node in nodes if not node["Alive"]}
        away = {name: place for name, place in self._places.items() if place not in machines}
        self._places = away | shard_places()
        for name, place in list(self._places.items()):
            if place in gone:
                if name in self._client.refresh().alive:
                    logger.warning("the machine of the shard %s is gone", name)
                    self._client.transact(partial(mark_lost, node=name))
                del self._places[name]
        for name, place in missing_shards(machines, self._places, self._launch.count):
            start_shard(name, place, machines[place]["NodeManagerAddress"], self._launch)
            self._places[name] = place


def use_ray_niceness() -> None:
    """Set an actor's threads, and thus its child processes, to the niceness of Ray's own process, if permitted.

    Ray starts its workers at niceness 15 unless RAY_worker_niceness is set when Ray is started. On a busy machine, a
    shard at that niceness would hardly respond.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, os.getppid())
    try:
        for thread in Path("/proc/self/task").glob("*"):
            with suppress(ProcessLookupError):  # the thread has just ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
    except PermissionError:
        logger.warning("an actor runs at niceness %d: start Ray with RAY_worker_niceness=%d", os.nice(0), niceness)


def free_port(host: str, wanted: int) -> int:
    """Return a free port of the machine: `wanted`, or another one if `wanted` is already in use. Raises OSError."""
    for port in (wanted, 0):
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            free: int = found.getsockname()[1]
            return free
    raise OSError(f"no port is free at {host}")


# Functions that are called from outside the actors


def connect(address: str) -> None:
    """Connect to the Ray cluster at `address`, in the form that `ray.init` accepts. Raises OSError."""
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RayError, RuntimeError, ValueError, TimeoutError) as error:
        raise OSError(f"no Ray cluster answers at {address!r}: {error}") from None


def launch_all(launch: Launch) -> None:
    """Start a launcher, replacing any running one. It outlives the caller."""
    stop_launcher()
    made = ray.remote(LauncherActor).options(
        name=LAUNCHER, namespace=NAMESPACE, lifetime="detached", max_restarts=-1, num_cpus=0
    )
    made.remote(asdict(launch))


def alive_machines() -> dict[str, Any]:
    """Return the live nodes of the Ray cluster by node ID."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def shard_places() -> dict[str, str]:
    """Return the Ray node of each shard that has an actor, by shard name."""
    return {name: place for name, _, place in (actor.removeprefix(SHARD).partition("@") for actor in _actors())}


def missing_shards(machines: Mapping[str, Any], places: Mapping[str, str], count: int | None) -> list[tuple[str, str]]:
    """Return (name, node) of each shard to start: one on each machine that has none, or enough to reach `count`."""
    taken = [place for place in places.values() if place in machines]
    if count is None:
        wanted = [place for place in sorted(machines) if place not in taken]
    else:
        used = {place: taken.count(place) for place in sorted(machines)}
        wanted = []
        while used and len(wanted) < count - len(taken):
            place = min(used, key=lambda one: (used[one], one))
            used[place] += 1
            wanted.append(place)
    made: dict[str, str] = {}
    for place in wanted:
        # The shard is named after its machine, so that a shard started there later finds the same folder.
        host = re.sub("[^A-Za-z0-9._-]", "-", machines[place]["NodeManagerHostname"])[:40]
        name = next(one for one in (f"{host}-{number}" for number in count_from()) if one not in {*places, *made})
        made[name] = place
    return list(made.items())


def start_shard(name: str, place: str, host: str, launch: Launch) -> None:
    """Start the actor of a shard on the Ray node `place`, whose address is `host`."""
    ray.remote(ShardActor).options(
        name=f"{SHARD}{name}@{place}",
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=4,
        num_cpus=0,
        get_if_exists=True,
        # Pinned to the machine with its folder. If the machine is lost, the actor is lost too, and other shards receive
        # its segments.
        scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False),
    ).remote(name, host, asdict(launch))


def shard_pids() -> dict[str, int | None]:
    """Return the process IDs of the shards' services, omitting actors that do not respond."""
    return _ask_shards("pid")


def shard_problems() -> dict[str, str]:
    """Return the reasons why shards are not serving, by shard name, omitting actors that report none."""
    return {name: problem for name, problem in _ask_shards("problem").items() if problem}


def _ask_shards(method: str) -> dict[str, Any]:
    """Call a method of all shards' actors and return the results by shard name, omitting actors that do not respond."""
    found = {}
    for actor in _actors():
        with suppress(RayError, ValueError):
            asked = getattr(ray.get_actor(actor, namespace=NAMESPACE), method).remote()
            found[actor.removeprefix(SHARD).partition("@")[0]] = ray.get(asked, timeout=_CALL_S)
    return found


def stop_launcher() -> None:
    """Stop the launcher and its reconciler if they are running."""
    _stop_actor(LAUNCHER)


def stop_shards() -> int:
    """Stop all shards and return the number of shards stopped. Their stores remain on disk."""
    actors = _actors()
    for actor in actors:
        _stop_actor(actor)
    return len(actors)


def _actors() -> list[str]:
    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in found if one["namespace"] == NAMESPACE and one["name"].startswith(SHARD))


def _stop_actor(name: str) -> None:
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return
    try:
        ray.get(actor.stop.remote(), timeout=STOP_S)
    except RayError as error:
        logger.warning("%s did not end by itself: %s", name, error)
    ray.kill(actor, no_restart=True)
