"""The JSON body of `PUT /aliases/{alias}`, which has no arrays."""

from __future__ import annotations

from app.requests.schemas.alias_request import alias_target
from app.tensors.buffer_type import Buffer
from app.wire.json import lossless_json
from app.wire.json.grammar_and_duplicate_keys import check_framing


def read_alias_target(body: Buffer) -> str:
    """The version that an alias is to name, as it was written. Raises malformed_request and invalid_field."""
    check_framing(body)
    return alias_target(lossless_json.loads(bytes(body).decode()))
