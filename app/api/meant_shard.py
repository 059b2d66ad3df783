"""The shard that a request is meant for: the header field X-Gathernd-Node.

A shard's address may previously have belonged to another shard, and callers may still use it for that one. Every
request that names another shard is refused. Services that are not shards ignore the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.errors import GatherError

NODE: Final = "X-Gathernd-Node"
FIELD: Final = NODE.lower().encode()
"""The field's name in lower case, as it is read and as a router writes it."""


def check_meant(headers: Mapping[bytes, bytes], node: str) -> None:
    """Raise precondition_failed if a request with these fields is meant for a shard other than `node`."""
    meant = headers.get(FIELD, node.encode())
    if meant != node.encode():
        raise GatherError(
            "precondition_failed",
            f"this is the shard {node!r}, and {meant.decode(errors='replace')!r} is meant",
            hint="Read the catalogue again: it says where each shard answers now.",
        )
