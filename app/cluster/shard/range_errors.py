"""The errors of scatters to a range, from its primary to routers."""

from __future__ import annotations

from app.errors import GatherError


def not_primary(node: str, tensor: str) -> GatherError:
    """precondition_failed: the router reads the newest map and asks the primary."""
    return GatherError(
        "precondition_failed",
        f"the shard {node!r} is not the primary of {tensor}",
        hint="Read the catalogue again: it says which shard is.",
    )


def unavailable(detail: str, *, is_known: bool = True) -> GatherError:
    """shard_unavailable; if not `is_known`, the scatter may have been made, or may still be made later."""
    if is_known:
        return GatherError("shard_unavailable", detail, hint="Send the request again after 1 s.", retry_after=1)
    return GatherError(
        "shard_unavailable",
        f"{detail}; the outcome of the scatter is unknown",
        hint="Send the request again with the same Idempotency-Key.",
        retry_after=1,
    )


class SequenceDiffers(GatherError):
    """A scatter requires another sequence than the range is at."""

    def __init__(self, sequence: int) -> None:
        super().__init__("precondition_failed", f"the range is at sequence {sequence}")
        self.sequence = sequence
