"""What an upload of a resident tensor says of itself before its items, in each of the formats it may come in."""

from __future__ import annotations

import re
from typing import Final

from app.errors import GatherError
from app.tensors.dtypes import BY_SAFETENSORS, DTYPES
from app.wire import npy, safetensors
from app.wire.npy import Start
from app.wire.packed_items import Charge, bounded_product
from app.wire.safetensors_header import HEADER_BYTES, read_header

NPY: Final = "application/x-npy"
SAFETENSORS: Final = "application/x-safetensors"
RAW: Final = "application/octet-stream"
_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")


def start_of(
    kind: str | None, head: bytes | bytearray, fields: dict[str, str], *, whole: bool, charge: Charge | None = None
) -> Start | None:
    """What the first bytes of an upload say, None where more are needed; `whole` says that there are no more.

    `kind` is the media type without parameters, None where there is none: then npy or safetensors, by their magic.
    `fields` is the query; `charge` is told what reading a header takes, in bytes, before it does. Raises
    malformed_request, limit_exceeded, unsupported_media_type, unsupported_dtype, invalid_field, element_count_mismatch,
    and what `charge` raises.
    """
    if kind == RAW:
        return _raw(fields)
    for name in ("dtype", "shape"):
        if name in fields:
            raise GatherError(
                "invalid_field", f"{name} is for {RAW}; other formats say it themselves", pointer=f"/query/{name}"
            )
    if kind is None:
        if len(head) < 9 and not whole:
            return None
        if head[: len(npy.MAGIC)] == npy.MAGIC:
            kind = NPY
        elif head[8:9] == b"{":
            kind = SAFETENSORS
        else:
            raise GatherError(
                "unsupported_media_type",
                f"the body is neither npy nor safetensors; say its Content-Type: {NPY}, {SAFETENSORS}, or {RAW} with "
                "dtype= and shape= in the query",
            )
    start = npy.read_start(head) if kind == NPY else _safetensors(head, charge)
    if start is None and whole:
        raise GatherError("malformed_request", f"the {kind} body ends within its header")
    return start


def _raw(fields: dict[str, str]) -> Start:
    for name in ("dtype", "shape"):
        if name not in fields:
            raise GatherError(
                "invalid_field", f"{RAW} needs {name}= in the query, as in ?dtype=float32&shape=200000,64",
                pointer=f"/query/{name}",
            )  # fmt: skip
    if fields["dtype"] not in DTYPES:
        raise GatherError(
            "unsupported_dtype", f"{fields['dtype'][:80]!a} is not an element type", pointer="/query/dtype"
        )
    if not _SIZES.fullmatch(fields["shape"]):
        raise GatherError(
            "invalid_field", "shape must be integers of 0 or more with commas between them", pointer="/query/shape"
        )
    shape = tuple(map(int, fields["shape"].split(","))) if fields["shape"] else ()
    return Start(DTYPES[fields["dtype"]], shape, 0, shape_pointer="/query/shape")


def _safetensors(head: bytes | bytearray, charge: Charge | None) -> Start | None:
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
        raise GatherError(
            "invalid_field", f"the body has {len(entries)} tensors; an upload has exactly one", pointer="/body"
        )
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
