"""`POST /gathernd` and `POST /gather`: one exchange from bytes to bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from app.api.asgi_request import Buffer, RequestContext
from app.api.schemas.explain_answer import explanation_body
from app.errors import GatherError
from app.operators.dialects import DIALECTS
from app.orjson_dump import dump
from app.service import Service
from app.tensors.gather_call import Answer, Call, Operator
from app.tensors.packed_strings import many_strings, release
from app.tensors.tensor import Tensor
from app.wire import safetensors
from app.wire.json import gather_messages
from app.wire.json.lossless_json import shown
from app.wire.query_fields import escape, query_fields

JSON: Final = b"application/json"
SAFETENSORS: Final = b"application/x-safetensors"
_FORM: Final = b"application/x-www-form-urlencoded"
LARGE: Final = 1 << 16
"""Bodies and outputs of more bytes are read and written on a pool thread, so that the event loop stays free."""
UNCOUNTED: Final = 1 << 9
"""Bodies and outputs of up to this many bytes become so little that it is not charged (see `budget.FREE`)."""
LARGE_BINARY: Final = 1 << 23
"""The same for binary bodies, whose items are at most looked at (bool) or moved."""
_MOST_TYPES: Final = 64
LARGE_HEADER: Final = 1 << 13
"""The same for their headers."""


class NativeRoute:
    """One of the two operators over HTTP."""

    def __init__(self, operator: Operator, service: Service, max_json_bytes: int, max_body_bytes: int) -> None:
        self.operator = operator
        self.service = service
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes
        self.dialects = tuple(DIALECTS[operator])

    async def __call__(self, context: RequestContext) -> None:
        """Read, gather, answer. Raises GatherError for everything it refuses."""
        content_type = context.headers.get(b"content-type")
        if content_type is not None and content_type != JSON:
            if content_type.partition(b";")[0].strip().lower() == SAFETENSORS:
                await self._binary(context)
                return
            check_json_type(content_type)
        body = await self._read_body(context, self.max_json_bytes)
        if len(body) <= LARGE:
            charge = context.reservation.charge if len(body) > UNCOUNTED else None
            call, output_encoding = self._read(body, context.query, charge)
        else:
            call, output_encoding = await self.service.pool.run(
                lambda: self._read(body, context.query, context.reservation.charge), context.timings
            )
        accept = context.headers.get(b"accept")
        binary = accept is not None and accept != JSON and answer_format(accept, JSON) == SAFETENSORS
        try:
            await self._answer(context, call, output_encoding, binary)
        finally:
            if many_strings(call.data):
                await asyncio.to_thread(release, call.data.array)

    async def _binary(self, context: RequestContext) -> None:
        """A safetensors request; the answer is one too unless Accept says otherwise."""
        body = await self._read_body(context, self.max_body_bytes)
        call, output_encoding = (
            self._read_binary(body, context)
            if len(body) <= LARGE_BINARY and safetensors.header_size(body) <= LARGE_HEADER
            else await self.service.pool.run(lambda: self._read_binary(body, context), context.timings)
        )
        accept = context.headers.get(b"accept")
        binary = accept is None or accept == SAFETENSORS or answer_format(accept, SAFETENSORS) == SAFETENSORS
        await self._answer(context, call, output_encoding, binary)

    async def _answer(
        self, context: RequestContext, call: Call, encoding: gather_messages.Encoding, binary: bool
    ) -> None:
        timings, service = context.timings, self.service
        if binary and isinstance(call.data, Tensor):
            binary = self._can_be_binary(context, call, call.data)
        timings.parsed = perf_counter()
        if call.explain:
            await context.send(200, JSON, dump(explanation_body(service.explain(call, context.reservation))))
            return
        answer = await service.gather(call, timings, context.reservation)
        timings.gathered = timings.kernel_end
        if binary and self._can_be_binary(context, call, answer.output):
            await context.send(200, SAFETENSORS, safetensors.write_answer(answer), *binary_headers(answer))
            return
        output, reservation = answer.output, context.reservation
        if output.array.nbytes <= UNCOUNTED and output.dtype.item_size:
            content = gather_messages.write_answer(answer, encoding)
        elif not gather_messages.is_long(output):
            content = gather_messages.write_answer(answer, encoding, reservation)
        else:
            content = await service.pool.run(
                lambda: gather_messages.write_answer(answer, encoding, reservation), timings
            )
            if many_strings(output):
                await asyncio.to_thread(release, output.array)
        await context.send(200, JSON, content)

    def _can_be_binary(self, context: RequestContext, call: Call, tensor: Tensor) -> bool:
        """Whether safetensors has the type; raises unsupported_dtype if it has not and Accept does not name JSON."""
        if tensor.dtype.safetensors is not None:
            return True
        if not accepted(context.headers.get(b"accept", b"")).get(JSON):
            safetensors.check_writable(
                tensor.dtype, tensor.dtype_pointer if isinstance(call.data, Tensor) else call.data_pointer
            )
        return False

    def _read_binary(self, body: Buffer, context: RequestContext) -> tuple[Call, gather_messages.Encoding]:
        return safetensors.read_call(body, context.query, self.operator, self.dialects, context.reservation.charge)

    async def _read_body(self, context: RequestContext, limit: int) -> Buffer:
        """The body without its Content-Encoding."""
        body = await context.read_body(limit)
        encoding = context.headers.get(b"content-encoding")
        if encoding is None:
            return body
        return await self.service.pool.run(lambda: context.inflate(body, encoding, limit), context.timings)

    def _read(
        self, body: Buffer, query: bytes, charge: Callable[[int], None] | None = None
    ) -> tuple[Call, gather_messages.Encoding]:
        try:
            found = gather_messages.read_call(body, self.operator, self.dialects, self.service.limits, charge)
        except GatherError as error:
            # What is not JSON at all comes first; every other fault comes after a field that may not be there.
            if query and error.code != "malformed_request":
                read_query(query)
            raise
        if query:
            found[0].explain = read_query(query)
        return found


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
    for name, _ in query_fields(query):
        raise _not_in_query(name)


def read_query(query: bytes) -> bool:
    """Whether the query of a gather in JSON asks for an explanation, the only field that it may have.

    Raises invalid_field at the first other field, for `explain` given twice, and for a value other than true and false.
    """
    explain: str | None = None
    for name, value in query_fields(query):
        if name != "explain":
            raise _not_in_query(name)
        if explain is not None:
            raise GatherError("invalid_field", "explain is given twice", pointer="/query/explain")
        explain = value
        if explain not in ("true", "false"):
            raise GatherError("invalid_field", "explain must be one of true, false", pointer="/query/explain")
    return explain == "true"


def _not_in_query(name: str) -> GatherError:
    return GatherError(
        "invalid_field",
        f"{shown(name)!r} is given in the query; a JSON request has all its fields in the body",
        pointer=f"/query/{escape(name)}",
    )


def accepted(accept: bytes) -> dict[bytes, float]:
    """The weight of each media type or range in an Accept field, of the first `_MOST_TYPES`."""
    weights: dict[bytes, float] = {}
    for part in accept.split(b",", _MOST_TYPES)[:_MOST_TYPES]:
        kind, *parameters = part.lower().split(b";")
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition(b"=")
            if name.strip() == b"q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        weights.setdefault(kind.strip(), weight)
    return weights


def answer_format(accept: bytes, asked_in: bytes) -> bytes:
    """Which of the two formats `accept` prefers; `asked_in`, the request's own, where it does not say."""
    weights = accepted(accept)
    rest = weights.get(b"application/*", weights.get(b"*/*", 0.0))
    json, binary = weights.get(JSON, rest), weights.get(SAFETENSORS, rest)
    if json == binary:
        return asked_in
    return JSON if json > binary else SAFETENSORS


def binary_headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    """What a JSON answer says beside its output, as header fields."""
    headers = [(b"x-gathernd-dialect", answer.dialect.encode()), (b"x-gathernd-device", answer.device.encode())]
    if answer.data_etag is not None:
        headers.append((b"x-gathernd-data-etag", answer.data_etag.encode()))
    return headers
