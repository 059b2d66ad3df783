"""Validates an infer request of the inference protocol, in any form, and builds its call.

Every form is first converted to the same document: the JSON of the request, with each array of items replaced by its
index. This module validates the document; the model of the operator's JSON requests validates its parameters. Unknown
members and parameters are ignored, as the protocol requires. A parameter that belongs to another model is an error,
because ignoring it would change the response.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic import ValidationError

from app.errors import GatherError, invalid_field
from app.json_text import lossless_json
from app.memory.budget import Memory
from app.near_name import near_name, replacement_text, shorten
from app.requests.envelope_cache import Validated
from app.requests.lookup_beside_arrays import validate_lookup
from app.requests.read_call import finish_validation, make_call, read_arrays, validate
from app.requests.request import JsonText, Origin, ReadArray, Request
from app.requests.schemas.gather_request import SEPARATE_TENSOR
from app.requests.schemas.infer_request import (
    InferInput,
    InferRequest,
    LookupInferRequest,
    OperatorInferRequest,
    OperatorInput,
)
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.member_types import ABSENT
from app.tensors.by_key import FOUND, KEY_FIELDS, KEYS
from app.tensors.dtypes import BY_OIP, DTYPES, DType
from app.tensors.gather_call import OUTPUT
from app.tensors.lookup_call import LOOKUP, LOOKUP_SIGNATURE, found_name
from app.tensors.operator_signature import OWN_FIELDS, READING_FIELDS, Signature
from app.tensors.shape_limits import Limits

_MOST_MICROSECONDS: Final = 10**15
_INDICES: Final = str(DTYPES["int64"].oip)
"""The default datatype of indices."""
_PARAMETERS: Final = Origin("/parameters", "/parameters/tensor")
_RESIDENT_PARAMETERS: Final = Origin("/parameters", "")
_LOOKUP: Final = f"/parameters/{LOOKUP}"
_TEXTS: Final = ("fill_value", "missing_row")
"""Parameters whose values may be JSON text."""


@lru_cache(1 << 12)
def _route(signature: Signature, reference: str) -> object:
    """Return the key of a model in the envelope cache. Comparing keys is faster than comparing signatures."""
    del signature, reference
    return object()


class Model:
    """The request format of a model: an operator, an operator on the resident tensor `reference`, or `lookup`.

    `inputs` lists the names of its inputs, `own` lists its parameters, and `foreign` lists the parameters that only
    other models have. `request` and `input` are the pydantic models of its requests and of an input. `route` is its key
    in the envelope cache. The `lookup` model has the inputs `0.indices`, `0.offsets`, `1.indices` and so on; the rest
    of a lookup is the JSON text in its `lookup` parameter.

    `keyed` is the same tensor's model for requests that gather rows by key.
    """

    __slots__ = (
        *("foreign", "input", "inputs", "is_lookup", "keyed", "name", "own"),
        *("reference", "request", "resident", "route", "signature"),
    )

    def __init__(
        self,
        name: str,
        signature: Signature,
        resident: bool = False,
        reference: str | None = None,
        keyed: Model | None = None,
    ) -> None:
        self.name = name
        self.reference = reference or name
        self.signature = signature
        self.resident = resident
        self.keyed = keyed
        by_key = resident and signature.keyed
        self.inputs = signature.inputs
        if resident:
            self.inputs = tuple(one for one in signature.inputs_beside((KEYS,)) if one != "data")
        self.route = _route(signature, self.reference if resident else "")
        self.is_lookup = signature.kind == "lookup"
        self.own = (LOOKUP,) if self.is_lookup else ("dialect", "device", *signature.own_fields)
        if by_key:
            self.own += KEY_FIELDS
        self.foreign = tuple(name for name in (*OWN_FIELDS, LOOKUP, "dialect", "device") if name not in self.own)
        self.request: type[InferRequest] = InferRequest if resident else OperatorInferRequest
        if self.is_lookup:
            self.request = LookupInferRequest
        self.input: type[InferInput] = InferInput if resident else OperatorInput

    def of_inputs(self, given: Sequence[Any]) -> Model:
        """Return the model for a request with these inputs: `keyed` if it has keys, else this model."""
        has_keys = self.keyed is not None and any(type(one) is dict and one.get("name") == KEYS for one in given)
        return self.keyed if has_keys and self.keyed is not None else self


LOOKUP_MODEL: Final = Model(LOOKUP, LOOKUP_SIGNATURE)


@dataclass(slots=True, eq=False)
class Input:
    """The input with index `number` in a request.

    Its items are either `size` bytes after the JSON, or the array with index `data` in the JSON; over gRPC, both are
    None. `dtype` is None if `datatype` is unknown; `shape` is None if the lists in `data` determine it.
    """

    number: int
    name: str
    datatype: str
    dtype: DType | None
    shape: tuple[int, ...] | None
    size: int | None
    data: int | None

    @property
    def pointer(self) -> str:
        """The JSON pointer of the input."""
        return f"/inputs/{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class InferDocument:
    """A validated request without its items.

    `validated` is the result of the operator's or the lookup's model; `names` maps the names of its arrays to the names
    of inputs. `outputs` maps the requested outputs to whether they are binary (None for all outputs), and `binary` is
    the default. `timeout` is the caller's timeout in seconds.
    """

    inputs: tuple[Input, ...]
    validated: Validated
    names: tuple[tuple[str, str], ...]
    identifier: str | None
    outputs: dict[str, bool] | None
    binary: bool
    timeout: float | None


@dataclass(slots=True, eq=False)
class AskedInference:
    """An infer request; `outputs` and `timeout` are those of `InferDocument`.

    `binary` says whether the outputs are binary if the request does not list them.
    """

    call: Any
    identifier: str | None
    outputs: dict[str, bool] | None
    binary: bool
    timeout: float | None

    @property
    def all_binary(self) -> bool:
        """True if all outputs are binary."""
        return self.binary and all((self.outputs or {}).values())


Arrays = dict[str, ReadArray]
"""The readers of the inputs' items, by input name."""


def read_document(
    document: Any,
    model: Model,
    items: Callable[[Input], ReadArray],
    limits: Limits,
    memory: Memory,
) -> tuple[InferDocument, Arrays]:
    """Validate a request without its items. Raises invalid_field and not_implemented.

    `items` returns the reader of an input's items, and raises invalid_field if there are none.
    """
    faults: InvalidFields | None = None
    fields: Any = None
    try:
        fields = model.request.model_validate(document)
    except ValidationError as refusal:
        faults = InvalidFields(refusal, model.request, document)
        faults.raise_unknown()
        faults.raise_first("id")
        if type(document.get("inputs")) is not list:
            raise faults.first() from None
    given = document.get("parameters")
    model = model.of_inputs(document["inputs"])
    inputs, arrays = _read_inputs(document["inputs"], model, fields, faults, items, _not_needed(model, given))
    if type(given) is dict:
        _check_own_parameters(given, model)
    elif faults is not None:
        faults.raise_first("parameters")
    if not model.is_lookup:
        validated = _validate_parameters(given or {}, model, arrays, limits)
        names, outputs = tuple((name, name) for name in model.inputs if name in arrays), [OUTPUT]
        by_key = validated.arguments.get("by_key")
        if by_key is not None and by_key.found:
            outputs.append(FOUND)
    if faults is not None:
        faults.raise_first("parameters")
        raise faults.first()
    if model.is_lookup:
        validated, names = _validate_lookup(fields.parameters.lookup, inputs, limits, memory)
        features = validated.fields.features
        outputs = [OUTPUT] if validated.fields.concat else [f"{number}.{OUTPUT}" for number in range(len(features))]
        outputs += [found_name(number) for number, feature in enumerate(features) if feature.found]
    parameters = fields.parameters
    binary = parameters is not ABSENT and bool(parameters.binary_data_output)
    timeout = None
    if parameters is not ABSENT and parameters.timeout:
        timeout = min(parameters.timeout, _MOST_MICROSECONDS) / 1e6
    asked = _asked_outputs(fields, outputs, binary)
    return InferDocument(inputs, validated, names, fields.id, asked, binary, timeout), arrays


def read_items(document: InferDocument, arrays: Arrays, model: Model, limits: Limits) -> AskedInference:
    """Read the items and build the call. May raise any error of `read_arrays`."""
    tensors = read_arrays({name: arrays[own] for name, own in document.names})
    call = make_call(model.signature, document.validated, tensors, limits)
    outputs, binary = document.outputs, document.binary
    if outputs and not model.is_lookup:
        binary = outputs.get(OUTPUT, binary)
    return AskedInference(call, document.identifier, outputs, binary, document.timeout)


def raw_document(model: Model) -> Any:
    """Return the document for a body without JSON: int64 index tuples of length 1, and a binary response.

    Raises malformed_request if the model has several inputs.
    """
    if not model.resident:
        several = f"has {len(model.inputs)}" if model.inputs else "has one for each array"
        raise malformed(f"a body without JSON is for a model with one input; {model.name} {several}")
    return {"inputs": [{"name": name} for name in model.inputs], "parameters": {"binary_data_output": True}}


def _read_inputs(
    given: Sequence[Any],
    model: Model,
    fields: Any,
    faults: InvalidFields | None,
    items: Callable[[Input], ReadArray],
    not_needed: Collection[str],
) -> tuple[tuple[Input, ...], Arrays]:
    """Return the inputs of a request in order, and the readers of their items. Inputs in `not_needed` may be missing.

    Raises the error of the first invalid input.
    """
    found: list[Input] = []
    arrays: Arrays = {}
    for number, one in enumerate(given):
        if faults is not None:
            faults.raise_first("inputs", number, "name")
        if not model.is_lookup and type(one) is dict:
            _check_name(number, one["name"], given, model)
        if faults is not None:
            faults.raise_first("inputs", number)
        described = fields.inputs[number] if faults is None else model.input.model_validate(one)
        name, datatype, parameters = described.name, described.datatype, described.parameters
        if datatype is ABSENT:
            datatype = _INDICES
        size = None if parameters is ABSENT else parameters.binary_data_size
        made = Input(number, name, datatype, BY_OIP.get(datatype), described.shape, size, described.data)
        source = items(made)
        if name in arrays:
            raise invalid_field(
                f"/inputs/{number}/name", f"the input {name!a} is given twice", f"Give the input {name!a} once."
            )
        arrays[name] = source
        found.append(made)
    for name in model.inputs:
        if name not in arrays and name not in not_needed:
            raise invalid_field("/inputs", f"the input {name!a} is missing", f"Add the input {name!a} to /inputs.")
    return tuple(found), arrays


def _not_needed(model: Model, parameters: Any) -> set[str]:
    """Return the inputs that a request may leave out, including those for which its parameters specify resident
    tensors.
    """
    if model.is_lookup:
        return set()
    given = parameters if type(parameters) is dict else {}
    named = model.signature.named_beside
    return {*model.signature.optional, *(name for name, field in named.items() if field in given)}


def _check_name(number: int, name: str, given: Sequence[Any], model: Model) -> None:
    """Raise invalid_field if the model has no input `name`; `given` lists the inputs of the request."""
    if name not in model.inputs:
        known = " and ".join(model.inputs)
        shown = str(lossless_json.shown(name))
        others = [str(other.get("name")) for other in given if type(other) is dict]
        missing = [one for one in model.inputs if one not in others]
        hint = f"Leave out the input {shorten(shown)!r}, since the inputs of {model.name} are {known}."
        if missing:
            hint = f"{replacement_text(shown, near_name(shown, missing) or missing[0])}, an input of {model.name}."
        raise invalid_field(f"/inputs/{number}/name", f"{shown!a} is not an input of {model.name}: {known}", hint)


def _check_own_parameters(parameters: Mapping[str, Any], model: Model) -> None:
    """Raise invalid_field for a parameter that only other models have; unknown ones are ignored."""
    for name in model.foreign:
        if name in parameters:
            if not model.is_lookup:
                hint = f"Leave out {name!r}, since the model {model.name} has {model.signature.own_fields[0]}."
            elif name in READING_FIELDS:
                hint = f"Write {name!r} in the JSON text of the parameter 'lookup', next to 'features'."
            else:
                hint = f"Leave out {name!r}, since a lookup runs on the CPU and has no operator's parameters."
            raise invalid_field(f"/parameters/{name}", f"the model {model.name} has no parameter {name}", hint)


def _validate_parameters(given: Mapping[str, Any], model: Model, arrays: Collection[str], limits: Limits) -> Validated:
    """Validate the parameters with the operator's JSON model. Raises invalid_field."""
    document: dict[str, Any] = {name: given[name] for name in model.own if name in given}
    document |= {name: JsonText(text) for name in _TEXTS if type(text := document.get(name)) is str}
    row = model.signature
    named = {name: document.pop(field) for name, field in row.named_beside.items() if field in document}
    for name in named:
        if name in arrays:
            field = row.named_beside[name]
            raise invalid_field(
                f"/parameters/{field}",
                f"the input {name!a} is given twice: in /inputs, and by the name of a resident tensor",
                f"Leave out the parameter {field!r}, or the input {name!a}.",
            )
    document |= {name: SEPARATE_TENSOR for name in model.inputs if name in arrays or name not in row.optional}
    document |= {name: {"tensor": tensor} for name, tensor in named.items()}
    if model.resident:
        document["data"] = {"tensor": model.reference}
    request = Request(document, None, _RESIDENT_PARAMETERS if model.resident else _PARAMETERS)
    validated, _ = finish_validation(row, request, validate(row, request, limits))
    return validated


def _validate_lookup(
    text: str, inputs: Sequence[Input], limits: Limits, memory: Memory
) -> tuple[Validated, tuple[tuple[str, str], ...]]:
    """Validate the `lookup` parameter with the JSON model of lookups.

    Also returns pairs of array name and input name.
    """
    pointers = {one.name: one.pointer for one in inputs}
    found = {one.name: one.name for one in inputs}
    names, validated = validate_lookup(
        text, _LOOKUP, found, lambda name: pointers.get(name, "/inputs"), "an input", limits, memory
    )
    return validated, tuple(names.items())


def _asked_outputs(fields: InferRequest, names: Sequence[str], binary: bool) -> dict[str, bool] | None:
    """Return whether each requested output is binary, by name; None if none is requested. Raises invalid_field."""
    if not fields.outputs:
        return None
    known = frozenset(names)
    found: dict[str, bool] = {}
    for number, output in enumerate(fields.outputs):
        name, parameters = output.name, output.parameters
        at = f"/outputs/{number}/name"
        if name not in known:
            hint = f"Ask for {names[0]!r}, or leave out the outputs."
            if len(names) == 1:
                hint = f"Write {names[0]!r} at {at}."
            detail = f"{name[:100]!a} is not an output of this request, which has {names[0]} to {names[-1]}"
            raise invalid_field(at, detail, hint)
        if name in found:
            raise invalid_field(at, f"the output {name!r} is requested twice", f"Ask for {name!r} once.")
        asked: bool | None = None if parameters is ABSENT else parameters.binary_data
        found[name] = binary if asked is None else asked
    return found


def malformed(detail: str) -> GatherError:
    """Return the error for a body that cannot be parsed as a request."""
    return GatherError("malformed_request", detail)
