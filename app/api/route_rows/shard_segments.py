"""The internal routes of a shard, by which segments are listed, pulled and dropped; `app.cluster.shard` answers.

They are served with `--shard` only, and are not in the OpenAPI file: nobody but reconcilers and routers use them.
"""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import CONTROL, Operation, Route, parameter
from app.security.authorizer import Access

_FENCE: Final = parameter("fence", "query", "The reconciler's fencing token; lower ones are refused from then on.")
_BYTES: Final = parameter("bytes", "query", "The bytes of the items of a segment.")
SHARD_ROUTES: Final = (
    Route("/shard/room", CONTROL, Access.CHANGES, {
        "GET": Operation("checkRoom", "Whether a segment has room", parameters=(_BYTES,), status=204),
    }),
    Route("/shard/segments", CONTROL, Access.CHANGES, {
        "GET": Operation("listSegments", "List the segments that are whole", parameters=(_FENCE,)),
    }),
    Route("/shard/segments/{tensor}", CONTROL, Access.CHANGES, {
        "POST": Operation("pullSegment", "Read a segment from another shard, or from where it was imported"),
        "DELETE": Operation("dropSegment", "Remove a segment", parameters=(_FENCE,), status=204),
    }),
)  # fmt: skip
"""Beside `route_table.ROUTES`."""
