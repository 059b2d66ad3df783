"""The JSON body of `POST /tensors/{name}/import`, which has no arrays."""

from __future__ import annotations

from app.requests.schemas.import_request import import_source
from app.tensors.buffer_type import Buffer
from app.wire.json import lossless_json
from app.wire.json.grammar_and_duplicate_keys import check_framing


def read_import_source(body: Buffer) -> tuple[str, str | None]:
    """The URL of a file and the name of a tensor in it. Raises malformed_request and invalid_field."""
    check_framing(body)
    return import_source(lossless_json.loads(bytes(body).decode()))
