"""`POST /gathernd` and `POST /gather`: one exchange from bytes to bytes."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter
from typing import Final
from urllib.parse import parse_qsl

from app.api.exchange import Exchange
from app.errors import GatherError
from app.service import Service
from app.spec.dialects import DIALECTS
from app.tensors.call import Call, Operator
from app.wire import native_json

JSON: Final = b"application/json"
_FORM: Final = b"application/x-www-form-urlencoded"
LARGE: Final = 1 << 16
"""Bodies and outputs of more bytes are read and written on a pool thread, so that the event loop stays free."""


class NativeRoute:
    """One of the two operators over HTTP."""

    def __init__(self, operator: Operator, service: Service, max_json_bytes: int) -> None:
        self.operator = operator
        self.service = service
        self.max_json_bytes = max_json_bytes
        self.dialects: Collection[str] = tuple(DIALECTS[operator])

    async def __call__(self, exchange: Exchange) -> None:
        """Read, gather, answer. Raises GatherError for everything it refuses."""
        content_type = exchange.headers.get(b"content-type")
        if content_type is not None and content_type != JSON:
            check_json_type(content_type)
        body = await exchange.read_body(self.max_json_bytes)
        encoding = exchange.headers.get(b"content-encoding")
        stages, service = exchange.stages, self.service
        if encoding is not None:
            raw = body
            body = await service.pool.run(lambda: exchange.inflate(raw, encoding, self.max_json_bytes))
        if exchange.query:
            refuse_query(exchange.query)
        call, output_encoding = (
            self._read(body) if len(body) <= LARGE else await service.pool.run(lambda: self._read(body))
        )
        stages.parsed = perf_counter()
        answer = await service.gather(call, stages, exchange.lease)
        stages.end = stages.kernel_end
        if answer.output.array.nbytes <= LARGE:
            content = native_json.write_answer(answer, output_encoding)
        else:
            content = await service.pool.run(lambda: native_json.write_answer(answer, output_encoding))
        await exchange.send(200, JSON, content)

    def _read(self, body: bytes | bytearray) -> tuple[Call, native_json.Encoding]:
        return native_json.read_call(body, self.operator, self.dialects, self.service.limits)


def check_json_type(content_type: bytes) -> None:
    """Raises unsupported_media_type unless `content_type` is JSON in UTF-8; an empty one counts as none."""
    kind, _, parameters = content_type.partition(b";")
    kind = kind.strip().lower()
    if kind in (JSON, b""):
        charset = parameters.strip().lower().replace(b'"', b"").replace(b" ", b"")
        if not charset or charset in (b"charset=utf-8", b"charset=utf8") or not charset.startswith(b"charset="):
            return
    shown = content_type.decode("latin-1")
    hint = "; with curl add -H 'Content-Type: application/json' (curl -d alone sends a form)" if kind == _FORM else ""
    raise GatherError("unsupported_media_type", f"{shown!r} is not read here; application/json is{hint}")


def refuse_query(query: bytes) -> None:
    """A JSON request has its fields in the body: raises invalid_field at the first field of a query."""
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        raise GatherError(
            "invalid_field",
            f"{name!r} is given in the query; a JSON request has all its fields in the body",
            pointer=f"/query/{name}",
        )
