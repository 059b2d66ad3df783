"""The Open Inference Protocol v2 over HTTP: the infer exchange, from bytes to bytes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from time import perf_counter
from typing import Final

from app.api.errors import JSON
from app.api.exchange import Buffer, Exchange
from app.api.oip_stats import Statistics
from app.dispatch.budget import Lease
from app.errors import GatherError
from app.service import Service, Stages
from app.spec.dialects import DIALECTS
from app.store import Resident
from app.tensors.call import Answer
from app.wire import oip_v2
from app.wire.json_write import likely_size
from app.wire.oip_v2 import LARGE, VERSION, Model, Request

_OCTETS: Final = b"application/octet-stream"
_PREFIX: Final = "/v2/models/"
_SUFFIX: Final = "/infer"
_ALIGNMENT: Final = 64
_ENCODINGS: Final = (b"gzip", b"deflate")
_REMEMBERED: Final = 1 << 12
OPERATORS: Final[Mapping[str, Model]] = {name: Model(name, name, tuple(DIALECTS[name])) for name in DIALECTS}
_PATHS: Final[Mapping[str, Model]] = {
    f"{_PREFIX}{name}{version}{_SUFFIX}": model for name, model in OPERATORS.items() for version in ("", "/versions/1")
}


class Models:
    """The models there are: the two operators, and every resident tensor under its own name."""

    def __init__(self, service: Service, statistics: Statistics) -> None:
        self.service = service
        self.statistics = statistics
        self._residents: dict[str, Model] = {}

    def find(self, name: str, version: str = VERSION) -> tuple[Model, Resident | None]:
        """The model, and the resident tensor that it is.

        Raises model_not_found, tensor_damaged, and unsupported_dtype for a tensor that the protocol cannot carry.
        """
        if version != VERSION:
            raise GatherError("model_not_found", f"no model has a version {version!r}; {VERSION!r} is the only one")
        model = OPERATORS.get(name)
        if model is not None:
            return model, None
        resident = self.service.store.get(name)
        if resident is None:
            raise GatherError("model_not_found", f"no model is named {name!r}")
        oip_v2.check_writable(resident.tensor.dtype)
        model = self._residents.get(name)
        if model is None:
            if len(self._residents) > _REMEMBERED:
                self._residents.clear()
            model = self._residents[name] = Model(name, "gathernd", tuple(DIALECTS["gathernd"]), resident=True)
        return model, resident

    def find_quickly(self, name: str, version: str) -> Model:
        """As `find`, without asking the store for a tensor that it had before: whoever reads it finds out."""
        return (self._residents.get(name) if version == VERSION else None) or self.find(name, version)[0]

    def forget(self, name: str) -> None:
        """The tensor of this name is gone."""
        self._residents.pop(name, None)

    def names(self) -> list[str]:
        """The names of all models."""
        return [*OPERATORS, *self.service.store.names()]


class InferRoute:
    """`POST /v2/models/{name}[/versions/{version}]/infer`."""

    def __init__(self, models: Models, max_json_bytes: int, max_body_bytes: int) -> None:
        self.models = models
        self.service = models.service
        self.max_json_bytes = max_json_bytes
        self.max_body_bytes = max_body_bytes

    async def __call__(self, exchange: Exchange) -> None:
        """Read, gather, answer. Raises GatherError for everything it refuses."""
        path, stages = exchange.path, exchange.stages
        model = _PATHS.get(path) or self.models.find_quickly(*split_path(path))
        statistics = self.models.statistics.of(model.name)
        try:
            arrived, request = await self._read(exchange, model)
            stages.parsed = perf_counter()
            answer = await self.service.gather(request.call, stages, exchange.lease)
            stages.end = stages.kernel_end
            output = answer.output
            if output.array.nbytes <= LARGE or (request.binary and output.dtype.item_size):
                pieces, json_size = oip_v2.write_answer(answer, model, request)
            else:
                known = model
                pieces, json_size = await self.service.pool.run(
                    lambda: _write(answer, known, request, exchange.lease), stages
                )
            statistics.succeeded(stages, arrived)
        except Exception as error:
            statistics.failed(stages.start)
            if isinstance(error, GatherError) and error.code == "tensor_not_found":
                self.models.forget(model.name)
                raise GatherError("model_not_found", f"no model is named {model.name!r}") from None
            raise
        headers = []
        if json_size is not None:
            headers.append((b"inference-header-content-length", b"%d" % json_size))
        if answer.data_etag is not None:
            headers.append((b"x-gathernd-data-etag", answer.data_etag.encode()))
        encoding = exchange.headers.get(b"accept-encoding")
        if encoding is not None and encoding in _ENCODINGS:
            pieces = await self._compress(pieces, encoding, stages)
            headers.append((b"content-encoding", encoding))
        await exchange.send(200, JSON if json_size is None else _OCTETS, pieces, *headers)

    async def _read(self, exchange: Exchange, model: Model) -> tuple[float, Request]:
        """When the body had arrived, and what it asks for. Its timeout becomes the deadline."""
        stages, service = exchange.stages, self.service
        json_size = read_json_size(exchange.headers)
        limit, lead = self.max_json_bytes, 0
        if json_size is not None:
            if json_size > limit:
                raise GatherError(
                    "payload_too_large",
                    f"the JSON of the request is larger than the limit of {limit} bytes",
                    facts={"limit": "json_bytes", "maximum": limit},
                )
            limit, lead = self.max_body_bytes, -json_size % _ALIGNMENT
        body = await exchange.read_body(limit, lead)
        arrived = perf_counter()
        encoding = exchange.headers.get(b"content-encoding")
        if encoding is not None:
            sent = body
            body = await service.pool.run(lambda: exchange.inflate(sent, encoding, limit, lead), stages)
        if len(body) <= LARGE or not oip_v2.is_heavy(body, json_size, model):
            request = oip_v2.read_request(body, json_size, model, service.limits)
        else:
            whole = body
            request = await service.pool.run(
                lambda: oip_v2.read_request(whole, json_size, model, service.limits, exchange.lease.charge), stages
            )
        if request.timeout is not None:
            stages.deadline = min(stages.deadline, stages.start + request.timeout)
        return arrived, request

    async def _compress(self, pieces: list[Buffer], encoding: bytes, stages: Stages) -> list[Buffer]:
        if sum(map(len, pieces)) <= LARGE:
            return compress(pieces, encoding)
        return await self.service.pool.run(lambda: compress(pieces, encoding), stages)


def _write(answer: Answer, model: Model, request: Request, lease: Lease) -> tuple[list[Buffer], int | None]:
    """The body of a large answer that has to be made, which is charged before it is."""
    planned = likely_size(answer.output)
    lease.charge(planned)
    pieces, json_size = oip_v2.write_answer(answer, model, request)
    lease.settle(planned, sum(map(len, pieces)))
    return pieces, json_size


def split_path(path: str) -> tuple[str, str]:
    """Name and version of the model in the path of an infer request. Raises not_found."""
    name, slash, rest = path[len(_PREFIX) : -len(_SUFFIX)].partition("/")
    if not slash:
        return name, VERSION
    kind, _, version = rest.partition("/")
    if kind != "versions" or not version or "/" in version:
        raise GatherError("not_found", f"no route has the path {path}")
    return name, version


def read_json_size(headers: dict[bytes, bytes]) -> int | None:
    """The bytes of JSON at the start of the body, None where all of it is. Raises malformed_request."""
    text = headers.get(b"inference-header-content-length")
    if text is None:
        return None
    text = text.strip()
    if not text.isdigit() or len(text) > 18:
        raise GatherError(
            "malformed_request",
            f"Inference-Header-Content-Length is {text[:64].decode('latin-1')!r}; it must be a number of bytes",
        )
    return int(text)


def compress(pieces: list[Buffer], encoding: bytes) -> list[Buffer]:
    """`pieces` in one gzip or zlib stream (which is what deflate means in HTTP)."""
    stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16 if encoding == b"gzip" else zlib.MAX_WBITS)
    done: list[Buffer] = [stream.compress(piece) for piece in pieces]
    done.append(stream.flush())
    return done
