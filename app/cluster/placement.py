"""The coordinator on Ray: a detached actor that Ray restarts, its records in the store of Ray's head (GCS).

Ray carries the protocol's messages, never a row. With GCS fault tolerance (Redis) the records outlive the head. The
only module that imports Ray, which the extra `cluster` is to bring; its options go to the actor as plain numbers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from app.cluster.coordinator import ClusterOptions
from app.cluster.message_exchange import MessageExchange
from app.cluster.record_files import KEPT

NAMESPACE: Final = "gathernd"
COORDINATOR: Final = "gathernd-coordinator"
_KEYS: Final = NAMESPACE.encode()
_PREFIX: Final = b"gathernd:record:"
_log = logging.getLogger(__name__)


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


class CoordinatorActor:
    """The actor: one call, `exchange`. It ends, for Ray to restart it, where another coordinator has taken over."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = ClusterOptions(**options)
        self._exchange: MessageExchange | None = None
        self._task: asyncio.Task[None] | None = None

    async def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float = 0.0) -> list[bytes]:
        """See `MessageExchange.exchange`."""
        if self._exchange is None:
            self._exchange = MessageExchange(uuid4().hex, self._options, HeadRecords())
            self._task = asyncio.create_task(self._exchange.runner.run())
        assert self._task is not None
        if self._task.done():
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                _log.error("the coordinator has failed", exc_info=error)
            os._exit(1)  # an actor that ends by itself in Ray's way is not started again
        return await self._exchange.exchange(sender, texts, wait_s)


def start_coordinator(options: ClusterOptions, **actor_options: Any) -> Any:
    """The coordinator's actor, started where there is none; Ray has to be initialized. It outlives the caller."""
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
    return made.remote(asdict(options))
