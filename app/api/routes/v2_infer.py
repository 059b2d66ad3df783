"""Handler for infer requests of the Open Inference Protocol v2, from request bytes to response bytes."""

from __future__ import annotations

from typing import Final

from app.api.asgi_request import RequestContext
from app.api.content_codings import compress_answer, negotiate_coding
from app.api.error_responses import JSON
from app.api.exchange import BodyLimits, gathernd_fields
from app.api.inference import Inference, InferFormat
from app.api.request_body import inflate_in, read_body, too_large, whole_body
from app.errors import GatherError
from app.formats import body_formats
from app.formats.oip.infer_answer import is_long_answer, write_answer
from app.formats.oip.read_body import InferBody, is_long
from app.formats.oip.read_body import read_body as read_infer_body
from app.tensors.buffer_type import Buffer

_OCTETS: Final = body_formats.RAW.media_type.encode()
_ALIGNMENT: Final = 64


_REST: Final[InferFormat[InferBody, tuple[list[Buffer], int | None]]] = InferFormat(
    is_long, read_infer_body, is_long_answer, write_answer
)


class InferRoute:
    """`POST /v2/models/{name}[/versions/{version}]/infer`."""

    def __init__(self, inference: Inference, limits: BodyLimits) -> None:
        self.inference = inference
        self.pool = inference.service.pool
        self.limits = limits

    async def __call__(self, context: RequestContext) -> None:
        """Read the request, run it, and respond. Raises GatherError for every refusal."""
        inference = self.inference
        name, *version = context.parameters
        model = inference.models.find_quickly(name, *version)
        try:
            body = await self._read_body(context)
        except Exception:
            inference.count_failure(model, context)
            raise
        answer, written = await inference.infer(_REST, body, model, version[0] if version else None, context)
        pieces, json_size = written
        headers = gathernd_fields("", "", answer.data_etag, answer.data_version, answer.replaced, answer.missing)
        if json_size is not None:
            headers = ((b"inference-header-content-length", b"%d" % json_size), *headers)
        coding = negotiate_coding(context.headers.get(b"accept-encoding"))
        if coding is not None:
            short = sum(map(len, pieces)) <= body_formats.LONG_JSON
            packed = await self.pool.run_unless(short, lambda: compress_answer(pieces, coding, context.memory), context)
            pieces, headers = packed, (*headers, (b"content-encoding", coding))
        media_type = JSON if json_size is None else _OCTETS
        if not context.send_at_once(200, media_type, pieces, headers):
            await context.send(200, media_type, pieces, *headers)

    async def _read_body(self, context: RequestContext) -> InferBody:
        json_size = read_json_size(context.headers)
        limit, lead = self.limits.json, 0
        if json_size is not None:
            if json_size > limit:
                raise too_large(limit, "json_bytes")
            limit, lead = self.limits.binary, -json_size % _ALIGNMENT
        body = whole_body(context, limit)
        if body is None:
            body = await read_body(context, limit, lead)
        if b"content-encoding" in context.headers:
            body = await inflate_in(self.pool, context, body, limit, lead)
        return body, json_size


def read_json_size(headers: dict[bytes, bytes]) -> int | None:
    """Return the size of the JSON at the start of the body, or None if the whole body is JSON.

    Raises malformed_request.
    """
    text = headers.get(b"inference-header-content-length")
    if text is None:
        return None
    text = text.strip()
    if not text.isdigit() or len(text) > 18:
        raise GatherError(
            "malformed_request",
            f"Inference-Header-Content-Length is {text[:64].decode('latin-1')!r}; it must be a number of bytes",
            hint="Send the number of bytes of the JSON at the start of the body in Inference-Header-Content-Length.",
        )
    return int(text)
