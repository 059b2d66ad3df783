"""What an upload of a resident tensor says of itself before its items: raw in the query, safetensors in its header."""

from __future__ import annotations

import re
from typing import Final

from app.errors import GatherError, invalid_field
from app.tensors.dtypes import BY_SAFETENSORS, DTYPES
from app.wire import safetensors
from app.wire.little_endian_items import Charge, bounded_product
from app.wire.npy import Start
from app.wire.safetensors_header import HEADER_BYTES, read_header

_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")


def read_raw_start(fields: dict[str, str]) -> Start:
    """Dtype and shape from the query. Raises invalid_field and unsupported_dtype."""
    for name in ("dtype", "shape"):
        if name not in fields:
            raise invalid_field(
                f"/query/{name}",
                f"application/octet-stream needs {name}= in the query, as in ?dtype=float32&shape=200000,64",
            )
    if fields["dtype"] not in DTYPES:
        raise GatherError(
            "unsupported_dtype", f"{fields['dtype'][:80]!a} is not an element type", pointer="/query/dtype"
        )
    if not _SIZES.fullmatch(fields["shape"]):
        raise invalid_field("/query/shape", "shape must be integers of 0 or more with commas between them")
    shape = tuple(map(int, fields["shape"].split(","))) if fields["shape"] else ()
    return Start(DTYPES[fields["dtype"]], shape, 0, shape_pointer="/query/shape")


def read_safetensors_start(head: bytes | bytearray, charge: Charge | None) -> Start | None:
    """What the header of a file with one tensor says, None where `head` ends before it does.

    Raises malformed_request, limit_exceeded, invalid_field, unsupported_dtype and element_count_mismatch.
    """
    if len(head) < 8:
        return None
    size = int.from_bytes(head[:8], "little")
    if size > safetensors.MAX_HEADER:
        raise GatherError(
            "limit_exceeded",
            f"the safetensors header has {size} bytes; the limit is {safetensors.MAX_HEADER}",
            facts={"limit": "safetensors_header_bytes", "maximum": safetensors.MAX_HEADER},
        )
    if len(head) < 8 + size:
        return None
    if charge is not None:
        charge(HEADER_BYTES * size)
    entries = read_header(bytes(head[8 : 8 + size]))
    if len(entries) != 1:
        raise invalid_field("/body", f"the body has {len(entries)} tensors; an upload has exactly one")
    (entry,) = entries
    dtype = BY_SAFETENSORS.get(entry.dtype)
    if dtype is None:
        raise GatherError(
            "unsupported_dtype", f"{entry.dtype!a} is not an element type of this service", pointer="/body"
        )
    if bounded_product(entry.shape, entry.end + 1) * dtype.item_size != entry.end:
        raise GatherError(
            "element_count_mismatch",
            f"{entry.end} bytes are announced, which is not what shape {list(entry.shape)} asks for",
            pointer="/body",
        )
    return Start(dtype, entry.shape, 8 + size)
