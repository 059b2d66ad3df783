"""The inference protocol's control plane: health, metadata, configuration, statistics and the model repository.

What the protocol has and this service does not is answered 501, so that a client is told why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import orjson
from fastapi import Depends, FastAPI, Request, Response

from app import __version__
from app.api.asgi_request import RequestContext
from app.api.error_responses import STATUS
from app.api.openapi_document import REASONS, operation
from app.api.route_table import OPERATIONS
from app.api.routes.health import Readiness
from app.api.routes.v2_infer import Models
from app.api.schemas.v2_messages import (
    IndexEntry,
    InferAnswer,
    InferRequest,
    ModelMetadata,
    ModelReady,
    ProtocolError,
    ServerLive,
    ServerMetadata,
    ServerReady,
    StatisticsBody,
)
from app.errors import Code, GatherError
from app.operators.registry import OPERATORS
from app.store import Resident
from app.tensors.dtypes import BY_OIP, DTYPES, INTEGERS
from app.wire.v2_tensors import OUTPUT, VERSION, Model

EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "parameters", "statistics",
)  # fmt: skip
PLATFORM: Final = "gathernd"
ANY_DATATYPE: Final = "FP32"
"""What the metadata calls the datatype of `data` and `output` where any will do: the protocol has no word for it."""
ANY_SHAPE: Final = (-1,)
_TAG: Final = "inference protocol"
_INDEX_BYTES: Final = 1 << 16
_EVERYWHERE: Final[tuple[Code, ...]] = (
    "malformed_request", "unauthorized", "forbidden", "request_timeout", "header_too_large", "internal",
)  # fmt: skip
_INFER: Final[tuple[Code, ...]] = (
    "model_not_found", "payload_too_large", "unsupported_media_type", "invalid_field", "unsupported_dtype",
    "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded", "device_unavailable",
    "overloaded", "not_ready", "deadline_exceeded", "tensor_damaged", "not_implemented",
    *(code for operator in OPERATORS.values() for code in operator.codes),
)  # fmt: skip
_OF_MODEL: Final[tuple[Code, ...]] = ("model_not_found", "unsupported_dtype", "tensor_damaged")


def protocol_errors(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's responses under /v2 for the statuses of `codes` and of those that may occur everywhere."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in sorted({*codes, *_EVERYWHERE}, key=lambda code: (STATUS[code], code)):
        status = STATUS[code]
        response = found.setdefault(status, {"model": ProtocolError, "description": f"{REASONS[status]}:"})
        response["description"] += f" `{code}`"
    return found


class ProtocolRoutes:
    """Adds the routes of the inference protocol to the control plane."""

    def __init__(self, models: Models, readiness: Readiness, log_level: str) -> None:
        self.models = models
        self.readiness = readiness
        self.log_level = log_level

    def __call__(self, app: FastAPI) -> None:
        """Add every route."""
        self._add_server(app)
        self._add_statistics(app)
        self._add_models(app)
        self._add_repository(app)
        self._add_settings(app)
        _add_shared_memory(app)

    def _add_server(self, app: FastAPI) -> None:
        @operation(
            app,
            "serverMetadata",
            tags=[_TAG],
            summary="Name, version and extensions",
            responses=protocol_errors(),
        )
        async def server() -> ServerMetadata:
            return ServerMetadata(name="gathernd", version=__version__, extensions=list(EXTENSIONS))

        @operation(
            app,
            "serverLive",
            tags=[_TAG],
            summary="Whether the process is alive",
            responses=protocol_errors(),
        )
        async def live() -> ServerLive:
            return ServerLive(live=True)

        @operation(
            app,
            "serverReady",
            tags=[_TAG],
            summary="Whether requests should be sent here",
            responses=protocol_errors("not_ready"),
        )
        async def ready() -> ServerReady:
            self._check_ready()
            return ServerReady(ready=True)

    def _check_ready(self) -> None:
        if not self.readiness.ready:
            raise self.readiness.error()

    def _add_statistics(self, app: FastAPI) -> None:
        # Before the routes of one model: "stats" would be its name.
        @operation(
            app,
            "statistics",
            tags=[_TAG],
            summary="Counts and times of every model",
            response_model=StatisticsBody,
            responses=protocol_errors(),
        )
        async def statistics() -> dict[str, Any]:
            # In a thread, since the store may have to look at its folder.
            names = await asyncio.to_thread(self.models.names)
            self.models.statistics.keep(names)
            return await self._statistics(names)

    async def _statistics(self, names: list[str]) -> dict[str, Any]:
        return {"model_stats": await self.models.statistics.bodies(names, VERSION)}

    def _add_models(self, app: FastAPI) -> None:
        self._add_model(app, "", _only_version)
        self._add_model(app, "Version", _version_of_path)

    def _add_model(self, app: FastAPI, suffix: str, asked: Callable[..., Any]) -> None:
        """Add the routes of a model, with `suffix` in their names; `asked` finds the version."""
        find = self.models.find

        @operation(
            app,
            f"model{suffix}Metadata",
            tags=[_TAG],
            summary="What a model takes and gives",
            response_model_exclude_none=True,
            responses=protocol_errors(*_OF_MODEL),
        )
        async def metadata(name: str, version: str = Depends(asked)) -> ModelMetadata:
            return ModelMetadata.model_validate(model_metadata(*find(name, version)))

        @operation(
            app,
            f"model{suffix}Ready",
            tags=[_TAG],
            summary="Whether a model may be called",
            responses=protocol_errors(*_OF_MODEL, "not_ready"),
        )
        async def ready(name: str, version: str = Depends(asked)) -> ModelReady:
            find(name, version)
            self._check_ready()
            return ModelReady(name=name, ready=True)

        @operation(
            app,
            f"model{suffix}Config",
            tags=[_TAG],
            summary="The model's configuration, as Triton words it",
            responses=protocol_errors(*_OF_MODEL),
        )
        async def config(name: str, version: str = Depends(asked)) -> dict[str, Any]:
            return model_config(*find(name, version))

        @operation(
            app,
            f"model{suffix}Statistics",
            tags=[_TAG],
            summary="Counts and times of a model",
            response_model=StatisticsBody,
            responses=protocol_errors(*_OF_MODEL),
        )
        async def statistics(name: str, version: str = Depends(asked)) -> dict[str, Any]:
            find(name, version)
            return await self._statistics([name])

        @operation(
            app,
            f"model{suffix}Infer",
            tags=[_TAG],
            summary="Gather",
            description="Items may also follow the JSON in binary (binary tensor data extension): the header field "
            "`Inference-Header-Content-Length` then says how long the JSON is, in the request and in the answer.",
            response_model=InferAnswer,
            responses=protocol_errors(*_INFER),
        )
        async def infer(name: str, body: InferRequest, version: str = Depends(asked)) -> NoReturn:
            raise AssertionError("answered by the data plane")

    def _add_repository(self, app: FastAPI) -> None:
        @operation(
            app,
            "repositoryIndex",
            tags=[_TAG],
            summary='Every model; those that may be called, where the body is {"ready": true}',
            responses=protocol_errors("payload_too_large", "invalid_field"),
            openapi_extra={
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}
                    }
                }
            },
        )
        async def index(request: Request) -> list[IndexEntry]:
            only_ready = await _wants_ready(request.scope["context"])
            entries = await asyncio.to_thread(self._index)
            return [entry for entry in entries if entry.state == "READY" or not only_ready]

        for action, text in (
            ("load", "A model is loaded from the moment it exists: nothing changes"),
            ("unload", "A model stays loaded as long as it exists: nothing changes"),
        ):

            @operation(
                app,
                f"repository{action.capitalize()}",
                tags=[_TAG],
                summary=text,
                response_class=Response,
                responses=protocol_errors(*_OF_MODEL),
            )
            async def change(name: str) -> Response:
                self.models.find(name)
                return Response()

    def _index(self) -> list[IndexEntry]:
        return [self._index_entry(name) for name in self.models.names()]

    def _index_entry(self, name: str) -> IndexEntry:
        try:
            self.models.find(name)
            self._check_ready()
        except GatherError as error:
            return IndexEntry(name=name, version=VERSION, state="UNAVAILABLE", reason=error.detail)
        return IndexEntry(name=name, version=VERSION, state="READY", reason="")

    def _add_settings(self, app: FastAPI) -> None:
        logging = {
            "log_file": "",
            "log_info": self.log_level in ("debug", "info"),
            "log_warning": self.log_level != "error",
            "log_error": True,
            "log_verbose_level": int(self.log_level == "debug"),
            "log_format": "default",
        }
        tracing = {
            "trace_level": ["OFF"],
            "trace_rate": "0",
            "trace_count": "0",
            "log_frequency": "0",
            "trace_file": "",
        }
        self._add_setting(app, "LogSettings", logging)
        self._add_setting(app, "TraceSettings", tracing)
        self._add_setting(app, "ModelTraceSettings", tracing, *_OF_MODEL, dependencies=[Depends(self._check_model)])

    def _add_setting(
        self, app: FastAPI, name: str, settings: dict[str, Any], *codes: Code, dependencies: Sequence[Any] = ()
    ) -> None:
        @operation(
            app,
            f"get{name}",
            tags=[_TAG],
            summary="The settings as they are",
            dependencies=dependencies,
            responses=protocol_errors(*codes),
        )
        async def get() -> dict[str, Any]:
            return settings

        @operation(
            app,
            f"update{name}",
            tags=[_TAG],
            summary="Not offered: an operator sets them when the service starts",
            dependencies=dependencies,
            responses=protocol_errors("not_implemented", *codes),
        )
        async def update() -> dict[str, Any]:
            raise GatherError("not_implemented", "log and trace settings are the operator's, set at start-up")

    async def _check_model(self, name: str) -> None:
        self.models.find(name)


async def _version_of_path(version: str) -> str:
    return version


async def _only_version() -> str:
    return VERSION


def _add_shared_memory(app: FastAPI) -> None:
    for name, (_, route) in OPERATIONS.items():
        if "SharedMemory" in name:
            register = operation(
                app, name, tags=[_TAG], summary="Not offered", responses=protocol_errors("not_implemented")
            )
            register(_no_shared_memory_region if "{region}" in route.template else _no_shared_memory)


async def _no_shared_memory() -> dict[str, Any]:
    raise GatherError("not_implemented", "shared memory is not offered here; send the tensors in the request")


async def _no_shared_memory_region(region: str) -> dict[str, Any]:
    return await _no_shared_memory()


async def _wants_ready(context: RequestContext) -> bool:
    """Whether the body of a repository index request asks for ready models only; the body may be empty."""
    body = await context.read_body(_INDEX_BYTES)
    if not body:
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatherError("malformed_request", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise GatherError("invalid_field", "the body must be a JSON object", pointer="")
    ready = document.get("ready", False)
    if not isinstance(ready, bool):
        raise GatherError("invalid_field", "ready must be true or false", pointer="/ready")
    return ready


def _tensors(model: Model, resident: Resident | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs of a model for its metadata."""
    every = {"datatypes": list(BY_OIP)}
    integers = {"datatypes": [DTYPES[name].oip for name in INTEGERS]}
    data = {"name": "data", "datatype": ANY_DATATYPE, "shape": ANY_SHAPE, "parameters": every}
    indices = {"name": "indices", "datatype": "INT64", "shape": ANY_SHAPE, "parameters": integers}
    output: dict[str, Any] = data | {"name": OUTPUT}
    if resident is not None:
        output = {"name": OUTPUT, "datatype": resident.tensor.dtype.oip, "shape": ANY_SHAPE}
    return [indices] if model.resident else [data, indices], [output]


def model_metadata(model: Model, resident: Resident | None) -> dict[str, Any]:
    """The metadata of a model."""
    inputs, outputs = _tensors(model, resident)
    return {"name": model.name, "versions": [VERSION], "platform": PLATFORM, "inputs": inputs, "outputs": outputs}


def model_config(model: Model, resident: Resident | None) -> dict[str, Any]:
    """The configuration of a model in the words of Triton's model configuration."""
    inputs, outputs = _tensors(model, resident)
    defaults = {model.signature.parameter: "0", "dialect": model.signature.default_dialect, "device": "auto"}
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [_configured(tensor) for tensor in inputs],
        "output": [_configured(tensor) for tensor in outputs],
        "parameters": {name: {"string_value": value} for name, value in defaults.items()},
    }


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": tensor["shape"],
    }
