"""The errors that a range's primary sends to routers in response to scatters."""

from __future__ import annotations

from app.errors import GatherError


def not_primary(node: str, tensor: str) -> GatherError:
    """Return precondition_failed. On this error, a router reads the newest map and then tries the primary."""
    return GatherError(
        "precondition_failed",
        f"the shard {node!r} is not the primary of {tensor}",
        hint="Read the catalogue again: it says which shard is.",
    )


def unavailable(detail: str, *, is_known: bool = True) -> GatherError:
    """Return shard_unavailable. Unless `is_known`, the scatter may have been applied or may still be applied later."""
    if is_known:
        return GatherError("shard_unavailable", detail, hint="Send the request again after 1 s.", retry_after=1)
    return GatherError(
        "shard_unavailable",
        f"{detail}; the outcome of the scatter is unknown",
        hint="Send the request again with the same Idempotency-Key.",
        retry_after=1,
    )


class SequenceDiffers(GatherError):
    """The range is at a sequence other than the one that a scatter requires."""

    def __init__(self, sequence: int) -> None:
        super().__init__("precondition_failed", f"the range is at sequence {sequence}")
        self.sequence = sequence
