"""Lookups by key in every format, over HTTP and gRPC, asked until they are answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import grpc
import httpx
import numpy as np

from app.errors import CATALOGUE
from tests.cluster.keyed_cases import JSON, key_arrays
from tests.grpc_api import messages
from tests.http.forms import tensor
from tests.http.tensors import RAW, SAFETENSORS
from tests.oip import bodies
from tests.parity.items import Array
from tests.parity.messages import DATATYPES, inferred, loaded, read_tensor, saved
from tests.workers.load import Connection, request

ABSENT: Final = -1
"""What fills the rows of missing keys."""
FILLED: Final[dict[str, Any]] = {"missing": "fill", "found": True}
LOST: Final = "UNAVAILABLE", "CANCELLED"
"""The statuses of a call whose connection broke."""
TIMEOUT_S: Final = 100
NO_FIELDS: Final[Mapping[str, str]] = {}
T = TypeVar("T")
Found = tuple[Array, Array]
"""Rows, and whether each key was found."""


class Caller:
    """A connection over HTTP and one over gRPC. What is lost, or refused with 503, is sent again; `lost` counts it.

    Raises AssertionError after two minutes without an answer.
    """

    def __init__(self, port: int, grpc_port: int) -> None:
        self.lost = 0
        self._port, self._address = port, f"127.0.0.1:{grpc_port}"
        self._connection: Connection | None = None
        self._channel = messages.Channel(self._address)

    def ask(
        self, method: str, path: str, body: bytes = b"", kind: str = JSON, fields: Mapping[str, str] = NO_FIELDS
    ) -> httpx.Response:
        """Send a request, and return the answer, whatever its status is."""
        content = request(method, path, body, **{"content-type": kind, **fields})
        return self._until_answered(lambda: self._http(content))

    def sure(
        self, method: str, path: str, body: bytes = b"", kind: str = JSON, fields: Mapping[str, str] = NO_FIELDS
    ) -> httpx.Response:
        """Send a request that must succeed."""
        answer = self.ask(method, path, body, kind, fields)
        assert answer.is_success, (method, path, body, answer.text)
        return answer

    def infer(self, message: Any) -> Any:
        """Send a ModelInferRequest, which must succeed."""
        return self._until_answered(lambda: self._grpc(message))

    def close(self) -> None:
        """Close both connections."""
        self._hang_up()
        self._channel.channel.close()

    def _until_answered(self, ask: Callable[[], T | None]) -> T:
        end = monotonic() + 120
        while (answer := ask()) is None:
            self.lost += 1
            assert monotonic() < end, "nobody answers"
            sleep(0.05)
        return answer

    def _http(self, content: bytes) -> httpx.Response | None:
        try:
            self._connection = self._connection or Connection(self._port, TIMEOUT_S)
            answer = self._connection.ask(content)
        except (OSError, EOFError):
            self._hang_up()
            return None
        found = httpx.Response(answer.status, headers=answer.headers, content=answer.body)
        return None if found.status_code == 503 else found

    def _grpc(self, message: Any) -> Any:
        try:
            return self._channel.call("ModelInfer", message, TIMEOUT_S)
        except grpc.RpcError as error:
            status, problem = messages.judged(error)
            if not (CATALOGUE[problem["code"]].status == 503 if problem else status in LOST):
                raise
        self._channel.channel.close()
        self._channel = messages.Channel(self._address)
        return None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _in_json(caller: Caller, reference: str, keys: Array) -> Found:
    asked = {"data": {"tensor": reference}, "keys": _tensor(keys), "fill_value": ABSENT, **FILLED}
    told = caller.sure("POST", "/gather", json.dumps(asked).encode()).json()
    return read_tensor(told["output"]), read_tensor(told["found"])


def _in_safetensors(caller: Caller, reference: str, keys: Array) -> Found:
    path = f"/gather?tensor={reference}&missing=fill&fill_value={ABSENT}&found=true"
    arrays, _ = loaded(caller.sure("POST", path, saved(_arrays(keys, "keys")), SAFETENSORS).content)
    return arrays["output"], arrays["found"]


def _in_a_query(caller: Caller, reference: str, keys: Array) -> Found:
    if not keys.size:  # a query names one key at least
        return _in_json(caller, reference, keys)
    query = urlencode([("key", key) for key in keys.tolist()])
    told = caller.sure("GET", f"/tensors/{reference}/rows?{query}").json()
    rows, found = read_tensor(told["output"]), read_tensor(told["found"])
    assert not rows[~found].any()
    return np.where(found[:, None], rows, ABSENT), found


def _in_a_lookup(caller: Caller, reference: str, keys: Array) -> Found:
    feature = {"tensor": reference, "keys": _tensor(keys), **FILLED}
    asked = {"features": [feature, feature], "fill_value": ABSENT}
    told = caller.sure("POST", "/lookup", json.dumps(asked).encode()).json()
    first, second = np.hsplit(read_tensor(told["output"]), 2)
    assert np.array_equal(first, second)
    return first, read_tensor(told["features"][0]["found"])


def _in_a_lookup_of_safetensors(caller: Caller, reference: str, keys: Array) -> Found:
    asked = {"features": [{"tensor": reference, **FILLED}], "fill_value": ABSENT}
    body = saved(_arrays(keys, "0.keys"), {"lookup": json.dumps(asked)})
    arrays, _ = loaded(caller.sure("POST", "/lookup", body, SAFETENSORS).content)
    return arrays["output"], arrays["0.found"]


def _over_the_protocol(caller: Caller, reference: str, keys: Array, *, binary: bool) -> Found:
    given = bodies.part("keys", keys, DATATYPES[type_of(keys)], binary=binary)
    parameters = {"fill_value": str(ABSENT), "binary_data_output": binary, **FILLED}
    body, fields = bodies.request([given], parameters=parameters)
    answer = caller.sure("POST", f"/v2/models/{reference}/infer", body, RAW if binary else JSON, fields)
    outputs, _ = inferred(answer)
    return outputs["output"], outputs["found"]


def _over_grpc(caller: Caller, reference: str, keys: Array, *, typed: bool) -> Found:
    given, parameters = {"keys": (DATATYPES[type_of(keys)], keys)}, {"fill_value": str(ABSENT), **FILLED}
    answer = caller.infer(messages.request(given, reference, typed=typed, parameters=parameters))
    rows, found = (
        np.frombuffer(raw, bodies.NUMPY[one.datatype]).reshape(tuple(one.shape))
        for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    )
    return rows, found


def type_of(keys: Array) -> str:
    """The type of keys."""
    return "string" if keys.dtype == object else keys.dtype.name


def _tensor(keys: Array) -> dict[str, Any]:
    return tensor(type_of(keys), keys.shape, keys.tolist())


def _arrays(keys: Array, name: str) -> dict[str, Array]:
    return key_arrays(keys.tolist(), type_of(keys), name)


FORMS: Final[dict[str, Callable[[Caller, str, Array], Found]]] = {
    "JSON": _in_json,
    "safetensors": _in_safetensors,
    "a query": _in_a_query,
    "a lookup": _in_a_lookup,
    "a lookup in safetensors": _in_a_lookup_of_safetensors,
    "the protocol": lambda *asked: _over_the_protocol(*asked, binary=False),
    "the protocol in binary": lambda *asked: _over_the_protocol(*asked, binary=True),
    "gRPC": lambda *asked: _over_grpc(*asked, typed=False),
    "gRPC, typed": lambda *asked: _over_grpc(*asked, typed=True),
}
"""Lookups of keys in the table that a reference names."""
