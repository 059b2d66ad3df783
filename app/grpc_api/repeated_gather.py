"""Gathers whose message differs from an earlier one in its arrays alone: they are run by the plan that was made then.

Messages of one layout ask for the same gather of the same types and shapes. Where the event loop ran one of them, the
next is run by the same plan, and its answer begins with the same head, unless something has changed since.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.call_planner import Planned
from app.dispatch.gpu_gathers import name_of
from app.memory.budget import MemoryReservation
from app.service import Service
from app.telemetry.server_timing import RequestTimings
from app.tensors.gather_call import Answer
from app.tensors.tensor import Tensor
from app.wire.v2_request_tensors import Request

LARGE: Final = 1 << 18
"""Bytes of items, of which longer ones are copied in a thread."""


class RepeatedGather:
    """What the gathers of one layout have in common: the plan, the name of the resident tensor, "" for data that comes
    along, with its ETag and its version's number, and the answer's head.

    `counted` is what the model's statistics call it.
    """

    __slots__ = ("_carrier", "_head", "_known", "_name", "_planned", "counted")

    def __init__(self, planned: Planned, data: Tensor, name: str, answer: Answer, head: bytes, counted: str) -> None:
        self._planned = planned
        self._carrier = data.dtype.carrier
        self._name = name
        self._known = answer.data_etag, answer.data_version
        self._head = head
        self.counted = counted

    def run(
        self,
        arrays: list[NDArray[np.generic]],
        service: Service,
        timings: RequestTimings,
        reservation: MemoryReservation,
    ) -> bytes | None:
        """The answer to the gather of these items. None where it has to be looked at as if it were the first: an index
        is wrong, the tensor is another one, a scatter has changed it meanwhile, or the routes have changed.

        Raises deadline_exceeded, tensor_damaged, and what charging raises.
        """
        planned, name, head = self._planned, self._name, self._head
        if planned.chooser is not service.chooser:  # as once a GPU is there
            return None
        resident = None
        if not name:
            data = arrays[0].view(self._carrier)
        else:
            resident = service.store.get(name)
            if resident is None or (resident.etag, resident.data_version) != self._known:
                return None
            data = resident.tensor.items
        plan, choice = planned.plan, planned.usual.choice
        reservation.charge(plan.output_bytes + plan.scratch_bytes)
        service.start_kernel(timings)
        out = np.empty(plan.output_items, self._carrier)
        bad = service.kernel.run(plan, data, arrays[-1], out)
        end = perf_counter()
        if bad >= 0 or not (resident is None or resident.is_consistent):
            timings.kernel = 0.0
            return None
        timings.choice, timings.route, timings.tensor = choice, choice.route, name
        timings.kernel_end = timings.gathered = end
        reservation.charge(len(head) + plan.output_bytes)
        return b"".join((head, out.data))


def repeated_gather(
    request: Request, answer: Answer, written: bytes, counted: str, service: Service, timings: RequestTimings
) -> RepeatedGather | None:
    """What later gathers of the layout of `request`, which was answered so, have in common with it.

    None where each has to be looked at: it is a scatter, the event loop did not run it, the next may have to run
    elsewhere, or the answer has more in it than the same head and the items. Raises tensor_damaged, and what planning
    raises.
    """
    call, output = request.call, answer.output
    if (
        timings.route != "loop"
        or call.updates is not None
        or not output.dtype.item_size
        or service.gpu is not None  # which may take the next one
        or call.out_of_bounds != "error"
        or request.identifier is not None
        or request.timeout is not None
        or output.array.nbytes > LARGE
    ):
        return None
    name = name_of(call)
    if isinstance(call.data, Tensor):
        data = call.data
    else:
        resident = service.store.get(name)
        if resident is None or (resident.etag, resident.data_version) != (answer.data_etag, answer.data_version):
            return None
        data = resident.tensor
    planned = service.planner.plan(call, data, service.chooser)
    if planned.usual.choice.route != "loop":
        return None
    head = written[: len(written) - output.array.nbytes]
    return RepeatedGather(planned, data, name, answer, head, counted)
