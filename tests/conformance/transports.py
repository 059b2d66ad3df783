"""How each transport carries a case, where its errors point to, and what its answers hold.

A transport is `send(target, case) -> Answer` and `pointer(case, place) -> str`. Written from docs/reference/formats.md
and docs/how-to/inference-protocol.md, and from nothing in `app`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from tests.conformance.cases import Case, Told, is_named
from tests.grpc_api.messages import FIELDS, Channel, items, pb
from tests.http.forms import COMPLEX, nested
from tests.parity.items import NUMPY, Array
from tests.parity.messages import DATATYPES, SHORT, SIZE, inferred, loaded, read_tensor, safetensors, unframed, values

SAFETENSORS = "application/x-safetensors"
QUANTIZED = "/gather_block_quantized"
"""The operator that has several inputs that may be resident, each by the name in a parameter of the protocol."""


@dataclass(frozen=True)
class Target:
    """Where requests go: a service, over HTTP and, if there is a `channel`, gRPC."""

    client: httpx.Client
    channel: Channel | None


@dataclass(frozen=True)
class Answer:
    """The arrays of a good answer with what it says beside them, or the `problem` of a refusal."""

    arrays: Mapping[str, Array]
    said: Mapping[str, Any]
    problem: Mapping[str, Any] | None = None


def _refused(answer: httpx.Response) -> Answer:
    problem = answer.json()
    assert answer.status_code == problem["status"], problem
    return Answer({}, {}, problem)


@dataclass(frozen=True)
class Place:
    """A place of flat JSON, taken apart: of which array it is, if of one, and what of it."""

    array: str | None
    what: str
    item: int = 0


def split(case: Case, pointer: str) -> Place:
    """What of the case the pointer of flat JSON names: `dtype`, `shape`, `values` or an `item` of an array, or else."""
    steps = pointer.split("/")[1:]
    if steps[:1] == ["features"] and len(steps) > 2:
        steps = [f"{steps[1]}.{steps[2]}", *steps[3:]]
    if steps and steps[0] in case.sent:
        match steps[1:]:
            case []:
                return Place(steps[0], "array")
            case [what]:
                return Place(steps[0], what)
            case ["values", item]:
                return Place(steps[0], "item", int(item))
    arrays = (
        ("data", "indices", "updates", "grad_output", "scales")
        if case.features is None
        else ("indices", "offsets", "weights")
    )
    if len(steps) == 1 and steps[0].split(".")[-1] in arrays:
        return Place(steps[0], "missing")
    return Place(None, pointer)


@dataclass(frozen=True)
class Json:
    """JSON whose arrays are flat, nested, `unshaped` (nested, without a shape), base64 or `mixed` (indices in base64).

    `accept` asks for an answer in another format.
    """

    name: str
    form: str
    encoding: str = "values"
    accept: str | None = None

    def send(self, target: Target, case: Case) -> Answer:
        """Ask over HTTP."""
        headers = {} if self.accept is None else {"accept": self.accept}
        answer = target.client.post(case.path, content=self.body(case), headers=headers)
        return _refused(answer) if answer.status_code != 200 else read_native(answer)

    def body(self, case: Case) -> bytes:
        """The text of the request."""
        body: dict[str, Any] = dict(case.parameters)
        in_place = case.path.startswith("/tensors/")
        if not in_place:
            body["output_encoding"] = self.encoding
        if case.resident is not None and not in_place:
            body["data"] = {"tensor": case.resident}
        if case.features is not None:
            body["features"] = [dict(one) for one in case.features]
        for name, told in case.sent.items():
            number, dot, role = name.partition(".")
            into = body["features"][int(number)] if dot else body
            into[role if dot else name] = self._array(name, told)
        return json.dumps(body).encode()

    def _form(self, name: str) -> str:
        if self.form == "mixed":
            return "base64" if name.endswith("indices") else "nested"
        return self.form

    def _array(self, name: str, told: Told) -> dict[str, Any]:
        given, form = {"dtype": told.dtype, "shape": list(told.shape)}, self._form(name)
        if form == "base64":
            return given | {"base64": b64encode(told.content).decode()}
        given["values"] = values(told.array) if told.listed is None else told.listed
        if form == "flat" or 0 in told.shape:
            return given
        found = nested(given)
        if form == "unshaped":
            del found["shape"]
        return found

    def pointer(self, case: Case, flat: str) -> str:
        """An item is where it stands in the nesting; in base64 there is only the text."""
        place = split(case, flat)
        if place.what not in ("item", "values") or self.form == "flat":
            return flat
        start = flat[: flat.index("/values")]
        assert place.array is not None
        if self._form(place.array) == "base64":
            return f"{start}/base64"
        at = np.unravel_index(place.item, case.sent[place.array].shape) if place.what == "item" else ()
        return "/".join((f"{start}/values", *map(str, at)))


@dataclass(frozen=True)
class Safetensors:
    """A safetensors body with the parameters in the query, whose answer is safetensors or JSON."""

    name: str
    accept: str | None = None

    def send(self, target: Target, case: Case) -> Answer:
        """Ask over HTTP."""
        query = {name: _in_query(name, _by_name(value)) for name, value in case.parameters.items()}
        metadata = None
        if case.resident is not None and not case.path.startswith("/tensors/"):
            query["tensor"] = case.resident
        if case.features is not None:
            metadata = {"lookup": json.dumps({"features": case.features, **case.parameters})}
            query = {}
        headers = {"content-type": SAFETENSORS} | ({} if self.accept is None else {"accept": self.accept})
        answer = target.client.post(case.path, params=query, content=saved(case.sent, metadata), headers=headers)
        return _refused(answer) if answer.status_code != 200 else read_native(answer)

    def pointer(self, case: Case, flat: str) -> str:
        """An array has one place; a parameter is in the query, and a lookup's in the text of the header."""
        place = split(case, flat)
        if place.array is not None:
            return f"/{place.array}"
        if case.features is not None:
            return f"/__metadata__/lookup{flat}"
        if flat == "/name":  # in the path
            return flat
        return f"/query{_named_beside(flat)}"


def _by_name(value: Any) -> Any:
    """A parameter as it stands beside the arrays: the name of a resident tensor is the field's own value."""
    return value["tensor"] if is_named(value) else value


def _named_beside(flat: str) -> str:
    """Where the name of a resident tensor stands beside the arrays: data's has a field of its own."""
    return "/tensor" if flat == "/data/tensor" else flat.removesuffix("/tensor") or flat


def _in_query(name: str, value: Any) -> str:
    if isinstance(value, str) and name != "fill_value":
        return value
    return ",".join(map(str, value)) if isinstance(value, list) and name != "fill_value" else json.dumps(value)


def saved(arrays: Mapping[str, Told], metadata: Mapping[str, str] | None = None) -> bytes:
    parts = {
        name: (SHORT.get(told.dtype, told.dtype.upper()), told.shape, told.content) for name, told in arrays.items()
    }
    return safetensors(parts, metadata)


def read_native(answer: httpx.Response) -> Answer:
    """The arrays of an answer of the service's own routes, in whichever format it is."""
    if answer.headers["content-type"] == SAFETENSORS:
        arrays, texts = loaded(answer.content)
        said: dict[str, Any] = json.loads(texts["lookup"]) if "lookup" in texts else {}
        fields = ("dialect", "device", "replaced", "data-etag", "data-version")
        found = {name: answer.headers.get(f"x-gathernd-{name}") for name in fields}
        replaced = None if found["replaced"] is None else int(found["replaced"])
        told = {"dialect": found["dialect"], "device": found["device"], "data_etag": found["data-etag"]}
        return Answer(arrays, said | told | {"replaced": replaced})
    body = answer.json()
    arrays = {name: read_tensor(one) for name, one in body.items() if isinstance(one, dict) and "dtype" in one}
    arrays |= {f"{number}.output": read_tensor(one) for number, one in enumerate(body.get("outputs", ()))}
    return Answer(arrays, body)


@dataclass(frozen=True)
class Protocol:
    """The inference protocol over HTTP, with items in JSON or binary."""

    name: str
    binary: bool

    def send(self, target: Target, case: Case) -> Answer:
        """Ask the operator's model, or the resident tensor's."""
        inputs, blobs = [], []
        for name, told in case.sent.items():
            one: dict[str, Any] = {"name": name, "datatype": datatype(told), "shape": list(told.shape)}
            if self.binary:
                blobs.append(told.content)
                one["parameters"] = {"binary_data_size": len(blobs[-1])}
            else:
                one["data"] = values(told.array) if told.listed is None else told.listed
            inputs.append(one)
        parameters = protocol_parameters(case) | {"binary_data_output": self.binary}
        text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
        headers = {SIZE: str(len(text))} if self.binary else {}
        url = f"/v2/models/{model(case).replace('@', '/versions/')}/infer"
        answer = target.client.post(url, content=b"".join((text, *blobs)), headers=headers)
        if answer.status_code != 200:
            return _refused(answer)
        arrays, document = inferred(answer)
        assert all(("data" in one) != self.binary for one in document["outputs"])
        said = document.get("parameters", {})
        etag = answer.headers.get("x-gathernd-data-etag")
        return Answer(arrays, said | json.loads(said.get("lookup", "{}")) | {"data_etag": etag})

    def pointer(self, case: Case, flat: str) -> str:
        """An input by its number, and of JSON an item of it."""
        return protocol_pointer(case, flat, "data", whole=self.binary)


def datatype(told: Told) -> str:
    return DATATYPES.get(told.dtype, told.dtype.upper())


def model(case: Case) -> str:
    """A resident tensor is a model of its own, which is GatherND."""
    return case.resident if case.resident is not None and case.path == "/gathernd" else case.path[1:]


def protocol_parameters(case: Case) -> dict[str, Any]:
    if case.features is not None:
        return {"lookup": json.dumps({"features": case.features, **case.parameters})}
    given = {
        name: json.dumps(value) if name == "fill_value" else _by_name(value) for name, value in case.parameters.items()
    }
    return given | ({"tensor": case.resident} if case.resident is not None and case.path == QUANTIZED else {})


def protocol_pointer(case: Case, flat: str, field: str, *, whole: bool) -> str:
    place = split(case, flat)
    if place.array is None:
        if case.features is not None:
            return f"/parameters/lookup{flat}"
        if flat == "/data/tensor" and case.path != QUANTIZED:
            return ""  # named by the path
        return f"/parameters{_named_beside(flat)}"
    if place.what == "missing":
        return "/inputs"
    start = f"/inputs/{list(case.sent).index(place.array)}"
    if place.what == "array":
        return start
    if place.what in ("dtype", "shape"):
        return f"{start}/{'datatype' if place.what == 'dtype' else 'shape'}"
    if whole:
        return start
    return f"{start}/{field}/{place.item}" if place.what == "item" else f"{start}/{field}"


@dataclass(frozen=True)
class Grpc:
    """The inference protocol over gRPC, with raw items or with items in `contents`."""

    name: str
    typed: bool

    def send(self, target: Target, case: Case) -> Answer:
        """Call ModelInfer."""
        message = pb.ModelInferRequest(model_name=model(case))
        for name, told in case.sent.items():
            one = message.inputs.add(name=name, datatype=datatype(told), shape=told.shape)
            if self.typed:
                getattr(one.contents, field_of(told)).extend(contents(told))
            else:
                message.raw_input_contents.append(told.content)
        for name, value in protocol_parameters(case).items():
            said = json.dumps(value) if isinstance(value, list) else value
            setattr(message.parameters[name], parameter_field(said), said)
        assert target.channel is not None
        status, answer = target.channel.attempt("ModelInfer", message)
        if status != "OK":
            assert answer, status
            return Answer({}, {}, answer)
        found = {name: _chosen(one) for name, one in answer.parameters.items()}
        return Answer(_outputs(answer), found | json.loads(found.get("lookup", "{}")))

    def pointer(self, case: Case, flat: str) -> str:
        """An input by its number, and an item within the field of `contents` that holds it."""
        array = split(case, flat).array
        field = field_of(case.sent[array]) if array is not None and array in case.sent else ""
        return protocol_pointer(case, flat, f"contents/{field}", whole=not self.typed)


def field_of(told: Told) -> str:
    """The field of `contents` for the items; types that have none are sent as FP32 would be."""
    return FIELDS.get(datatype(told), "fp32_contents")


def contents(told: Told) -> list[Any]:
    """The items as `contents` take them."""
    if told.listed is not None:
        return told.listed
    return [float(abs(item)) for item in told.array.reshape(-1)] if told.dtype in COMPLEX else items(told.array)


def parameter_field(value: Any) -> str:
    """The field of a parameter's message; uint64_param holds what is beyond int64."""
    if type(value) is int and value > 2**63 - 1:
        return "uint64_param"
    return {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]


def _chosen(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def _outputs(answer: Any) -> dict[str, Array]:
    found = {}
    names = {long: name for name, long in DATATYPES.items()}
    for told, blob in zip(answer.outputs, answer.raw_output_contents, strict=True):
        dtype = names[told.datatype]
        if dtype == "string":
            texts = unframed(blob)
            made: Array = np.empty(len(texts), object)
            made[:] = texts
        else:
            made = np.frombuffer(blob, NUMPY[dtype])
        found[told.name] = made.reshape(tuple(told.shape))
    return found


Transport = Json | Safetensors | Protocol | Grpc
FLAT = Json("JSON, flat", "flat")
TRANSPORTS: tuple[Transport, ...] = (
    FLAT,
    Json("JSON, nested", "nested"),
    Json("JSON, nested without shape", "unshaped", "base64"),
    Json("JSON, base64", "base64"),
    Json("JSON, mixed, safetensors back", "mixed", accept=SAFETENSORS),
    Safetensors("safetensors"),
    Safetensors("safetensors, JSON back", "application/json"),
    Protocol("protocol, JSON", binary=False),
    Protocol("protocol, binary", binary=True),
    Grpc("gRPC, raw", typed=False),
    Grpc("gRPC, contents", typed=True),
)
