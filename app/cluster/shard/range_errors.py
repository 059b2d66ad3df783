"""The errors of scatters to a range, sent by its primary to routers."""

from __future__ import annotations

from app.errors import GatherError


def not_primary(node: str, tensor: str) -> GatherError:
    """Return precondition_failed, which makes a router read the newest map and ask the primary."""
    return GatherError(
        "precondition_failed",
        f"the shard {node!r} is not the primary of {tensor}",
        hint="Read the catalogue again: it says which shard is.",
    )


def unavailable(detail: str, *, is_known: bool = True) -> GatherError:
    """Return shard_unavailable. If not `is_known`, the scatter may have been applied or may still be applied later."""
    if is_known:
        return GatherError("shard_unavailable", detail, hint="Send the request again after 1 s.", retry_after=1)
    return GatherError(
        "shard_unavailable",
        f"{detail}; the outcome of the scatter is unknown",
        hint="Send the request again with the same Idempotency-Key.",
        retry_after=1,
    )


class SequenceDiffers(GatherError):
    """The range is at another sequence than a scatter requires."""

    def __init__(self, sequence: int) -> None:
        super().__init__("precondition_failed", f"the range is at sequence {sequence}")
        self.sequence = sequence
