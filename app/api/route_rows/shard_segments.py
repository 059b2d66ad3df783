"""The internal routes of a shard: list, pull and drop segments; scatter to ranges and replicate them.

`app.cluster.shard` handles them. They exist only with `--shard`, and are left out of the OpenAPI file because only
reconcilers, routers and other shards use them.
"""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import CONTROL, Operation, Route, parameter
from app.security.authorizer import Access

_FENCE: Final = parameter("fence", "query", "The reconciler's fencing token; lower ones are refused from then on.")
_CONFIRMED: Final = parameter(
    "confirmed", "query", "true asks the primary, which has all replicas in sync confirm that it is."
)
_ROWS: Final = parameter("rows", "query", "true asks for the number of rows, and the sequence that has them.")
_BYTES: Final = parameter("bytes", "query", "The bytes of a segment's items.")
SHARD_ROUTES: Final = (
    Route("/shard/room", CONTROL, Access.CHANGES, {
        "GET": Operation("checkRoom", "Whether a segment has room", parameters=(_BYTES,), status=204),
    }),
    Route("/shard/segments", CONTROL, Access.CHANGES, {
        "GET": Operation("listSegments", "List the segments that are whole", parameters=(_FENCE,)),
    }),
    Route("/shard/segments/{tensor}", CONTROL, Access.CHANGES, {
        "POST": Operation("pullSegment", "Pull a segment from another shard, or from the source of its import"),
        "DELETE": Operation("dropSegment", "Remove a segment", parameters=(_FENCE,), status=204),
    }),
    Route("/shard/ranges/{tensor}", CONTROL, Access.CHANGES, {
        "GET": Operation("rangeState", "The end of a range's log, and its rows", parameters=(_CONFIRMED, _ROWS)),
    }),
    Route("/shard/ranges/{tensor}/scatter", CONTROL, Access.CHANGES, {
        "POST": Operation("scatterRange", "Scatter to a range, at its primary"),
    }),
    Route("/shard/ranges/{tensor}/records", CONTROL, Access.CHANGES, {
        "POST": Operation("appendRecords", "Take records from the primary of a range"),
    }),
    Route("/shard/ranges/{tensor}/join", CONTROL, Access.CHANGES, {
        "POST": Operation("joinRange", "Add a replica to the in-sync set, at the primary of the range"),
    }),
    Route("/shard/ranges/{tensor}/keys", CONTROL, Access.CHANGES, {
        "GET": Operation("rangeKeys", "List the Idempotency-Keys of a range"),
    }),
)  # fmt: skip
"""The routes of a shard, in addition to `route_table.ROUTES`."""
