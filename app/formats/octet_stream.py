"""Uploads as application/octet-stream: raw items, with dtype and shape in the query."""

from __future__ import annotations

from app.errors import GatherError, invalid_field
from app.formats.npy import Start
from app.requests.schemas.member_types import SIZES
from app.tensors.dtypes import DTYPES
from app.tensors.near_dtype import hint_for_dtype


def read_start(fields: dict[str, str]) -> Start:
    """Read dtype and shape from the query. Raises invalid_field and unsupported_dtype."""
    for name in ("dtype", "shape"):
        if name not in fields:
            raise invalid_field(
                f"/query/{name}",
                f"application/octet-stream needs {name}= in the query, as in ?dtype=float32&shape=200000,64",
                f"Add '{name}' to the query, as in ?dtype=float32&shape=2,3, or upload npy, or safetensors as "
                "'Content-Type: application/x-safetensors', which contain it.",
            )
    if fields["dtype"] not in DTYPES:
        raise GatherError(
            "unsupported_dtype",
            f"{fields['dtype'][:80]!a} is not an element type",
            pointer="/query/dtype",
            hint=hint_for_dtype(fields["dtype"]),
        )
    try:
        shape = SIZES.parse(fields["shape"])
    except ValueError:
        detail = "shape must be integers of 0 or more with commas between them"
        raise invalid_field("/query/shape", detail, "Write the sizes with commas, as in shape=2,3.") from None
    return Start(DTYPES[fields["dtype"]], shape, 0, shape_pointer="/query/shape")
