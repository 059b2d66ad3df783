"""The router: the service that runs gathers and lookups on tables whose row ranges are on other services."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from app.cluster.router.fetch_rows import MAX_RESTARTS, TableReads, VersionGone
from app.cluster.router.range_requests import Output, as_rows, row_requests
from app.cluster.router.shard_resources import NeedingPlaces, ShardResources, unavailable
from app.cluster.router.sharded_gathers import ShardedGathers
from app.cluster.router.sharded_lookups import ShardedLookups
from app.cluster.router.sharded_tensors import ShardedResident
from app.errors import Place
from app.services.gradients import Gradients
from app.services.runner import AnyCall, Runner
from app.services.service import Service
from app.store.store_errors import not_found
from app.telemetry.served_request import ServedRequest
from app.tensors.backward_call import BackwardCall
from app.tensors.gather_call import Answer, Call
from app.tensors.lookup_call import LookupCall
from app.tensors.tensor import Tensor


class Router(Service, ShardResources):
    """Run calls on tables of a shard map."""

    @cached_property
    def runners(self) -> Mapping[type, Runner]:
        """The runners, by call type."""
        return {Call: ShardedGathers(self), LookupCall: ShardedLookups(self), BackwardCall: Gradients(self)}

    def run(self, call: AnyCall, request: ServedRequest) -> Coroutine[Any, Any, Answer]:
        """Run a call, and restart it if the version that a name refers to is removed while the call is running."""
        return self._run_with_restarts(super().run(call, request), call, request)

    async def _run_with_restarts(
        self,
        running: Coroutine[Any, Any, Answer],
        call: AnyCall,
        request: ServedRequest,
    ) -> Answer:
        for _ in range(MAX_RESTARTS):
            try:
                return await running
            except VersionGone:
                running = super().run(call, request)
        return await running

    async def read_scalar(self, reference: str, request: ServedRequest) -> Tensor:
        """Return the item of a table of rank 0. No operator can read it.

        Raises tensor_not_found and shard_unavailable.
        """
        resident = self.store.get(reference)
        if not isinstance(resident, ShardedResident):
            raise not_found(reference, self.store)
        data = resident.tensor
        items = self.outputs.empty(1, data.dtype.carrier)
        view = as_rows(items, data.dtype.item_size) if data.dtype.item_size else None
        output = Output(data.dtype, view, 1, request.memory, self.limits.output_bytes)
        asked = row_requests(resident.version_in_map, np.zeros(1, np.int64), (1,), output, ())
        lost = await self.fetcher.fetch([TableReads(resident, asked)], request)
        if lost:
            raise unavailable(resident, lost, [NeedingPlaces([(0, Place("/name"))], 1)])
        if data.dtype.kind == "string":
            return output.strings(1, ())
        output.finish()
        return data.gathered((), items)
