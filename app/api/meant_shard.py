"""The shard that a request is meant for: the header field X-Gathernd-Node.

The address of a shard may have belonged to another shard before, and callers may not know yet. A request that names
another shard is refused, whatever it asks. Services that are not shards ignore the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.errors import GatherError

NODE: Final = "X-Gathernd-Node"
FIELD: Final = NODE.lower().encode()
"""Its name as requests are read, and as a router writes it."""


def check_meant(headers: Mapping[bytes, bytes], node: str) -> None:
    """Raise precondition_failed if a request with these fields is meant for a shard other than `node`."""
    meant = headers.get(FIELD, node.encode())
    if meant != node.encode():
        raise GatherError(
            "precondition_failed",
            f"this is the shard {node!r}, and {meant.decode(errors='replace')!r} is meant",
            hint="Read the catalogue again: it says where each shard answers now.",
        )
