"""Read the W3C Trace Context of a caller's request, and pass it on with the requests made on its behalf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
TRACE_FIELDS: Final = (b"traceparent", b"tracestate")
"""The header fields of a trace."""


def trace_id_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the trace id from the caller's header (W3C Trace Context), or None if there is no valid one."""
    given = headers.get(b"traceparent")
    found = None if given is None else _TRACEPARENT.fullmatch(given)
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[4]):
        return None
    return found[2].decode() if found[2].strip(b"0") and found[3].strip(b"0") else None


def forwarded_header_lines(headers: Mapping[bytes, bytes], request_id: str | None) -> bytes:
    """Return the header lines that pass on the caller's request id and trace to another service.

    `headers` are those of the caller's request; `request_id` is the id in that request, or None if it has no valid id.
    """
    lines = b"" if request_id is None else b"x-request-id: %b\r\n" % request_id.encode()
    if trace_id_of(headers) is not None:
        for name in TRACE_FIELDS:
            if name in headers:
                lines += b"%b: %b\r\n" % (name, headers[name])
    return lines
