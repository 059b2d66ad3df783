"""Uploads as a safetensors file, which has one tensor: what its header says, before the items come."""

from __future__ import annotations

from app.errors import GatherError, invalid_field
from app.formats.npy import Start
from app.formats.safetensors.header import HEADER_BYTES, UNSOUND_HINT, check_header_size, hint_for_type, read_header
from app.memory.budget import Memory


def read_start(head: bytes | bytearray, memory: Memory) -> Start | None:
    """What the header of a file with one tensor says, None where `head` ends before it does.

    Raises malformed_request, limit_exceeded, invalid_field, unsupported_dtype and element_count_mismatch.
    """
    if len(head) < 9:
        return None
    if head[8:9] != b"{":
        raise GatherError("malformed_request", "the safetensors header does not start with {", hint=UNSOUND_HINT)
    size = int.from_bytes(head[:8], "little")
    check_header_size(size)
    if len(head) < 8 + size:
        return None
    memory.charge(HEADER_BYTES * size)
    entries = read_header(bytes(head[8 : 8 + size]))
    if len(entries) != 1:
        raise invalid_field("/body", f"the body has {len(entries)} tensors; an upload has exactly one")
    (entry,) = entries
    if entry.known is None:
        raise GatherError(
            "unsupported_dtype",
            f"{entry.dtype!a} is not an element type of this service",
            pointer="/body",
            hint=hint_for_type(entry.dtype),
        )
    if entry.fault:
        raise GatherError("element_count_mismatch", entry.fault, pointer="/body")
    return Start(entry.known, entry.shape, 8 + size)
