"""The JSON of an infer request: what it says of the inputs, and where the items of those that it holds itself are.

The items are cut out (`find_arrays`) and a library reads the rest (`body_without_arrays`), as of a gather's body. Here
unknown members and parameters are ignored, as the protocol asks for; and NaN and infinities may stand bare, as many
libraries write them, which is not JSON: as items of floats they are numbers, everywhere else they are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.errors import GatherError, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_OIP, DType
from app.tensors.operator_signature import Signature
from app.wire.json import grammar_and_duplicate_keys, lossless_json
from app.wire.json.body_without_arrays import MOST_ARRAYS, read_envelope
from app.wire.json.find_arrays import FoundArrays, find_inputs
from app.wire.little_endian_items import Charge, view_of
from app.wire.v2_request_parameters import flag, parameters_of, read_parameters, refuse_shared_memory

OUTPUT: Final = "output"
_NO_LIST: Final = b"{n"


class Model:
    """A model as its requests see it: an operator, or one on the resident tensor of the model's name.

    `inputs` are the names of its inputs.
    """

    __slots__ = ("inputs", "name", "resident", "signature")

    def __init__(self, name: str, signature: Signature, resident: bool = False) -> None:
        self.name = name
        self.signature = signature
        self.resident = resident
        self.inputs = tuple(name for name in signature.inputs if name != "data") if resident else signature.inputs


class Input(NamedTuple):
    """Input `number` as the JSON describes it: `size` bytes behind the JSON, or the span `first` to `end` of the JSON.

    `dtype` is None where `datatype` is not the name of one.
    """

    number: int
    name: str
    datatype: str
    dtype: DType | None
    shape: tuple[int, ...]
    size: int | None
    first: int
    end: int
    depth: int

    @property
    def pointer(self) -> str:
        """Where the request has it."""
        return f"/inputs/{self.number}"


class Head(NamedTuple):
    """What the JSON of a request says, but for the items.

    `inputs` is in the model's order; `blobs` has those whose items follow the JSON, in the request's order.
    """

    inputs: tuple[Input, ...]
    blobs: tuple[Input, ...]
    parameter: int
    dialect: str
    device: Any
    identifier: str | None
    binary: bool
    timeout: float | None


def read_head(text: Buffer, model: Model, charge: Charge | None = None) -> Head:
    """What the JSON of a request to `model` says. Raises malformed_request, invalid_field, not_implemented.

    `charge` is told what a check of the whole grammar takes, in bytes, before it does.
    """
    found = find_inputs(view_of(text), MOST_ARRAYS)
    if not found.closed:
        raise malformed("the JSON of the request is not JSON: quotes or brackets do not close")
    if found.arrays > MOST_ARRAYS:
        raise GatherError(
            "limit_exceeded",
            f"{found.arrays} objects of the request have a member data; {MOST_ARRAYS} may",
            pointer="/inputs",
            facts={"limit": "data_members", "maximum": MOST_ARRAYS},
        )
    document = read_envelope(text, found, "the items of the inputs", check_framing, charge)
    if type(document) is not dict:
        raise invalid_field("", "the body must be a JSON object")
    identifier = document.get("id")
    if identifier is not None and (type(identifier) is not str or not _is_text(identifier)):
        raise invalid_field("/id", "id must be a string of Unicode")
    given = document.get("inputs")
    if type(given) is not list:
        raise invalid_field(
            "/inputs", "inputs must be a list of tensors" if "inputs" in document else "inputs is missing"
        )
    inputs: dict[str, Input] = {}
    counted, cut = len(document), 0
    for number, value in enumerate(given):
        one = _input(number, value, model, text, found, charge)
        if one.name in inputs:
            raise invalid_field(f"/inputs/{number}/name", f"the input {one.name!a} is given twice")
        inputs[one.name] = one
        counted += len(value)
        cut += "data" in value
    if len(inputs) < len(model.inputs):
        missing = next(name for name in model.inputs if name not in inputs)
        raise invalid_field("/inputs", f"the input {missing!a} is missing")
    parameter, dialect, device, timeout, binary = 0, model.signature.default_dialect, "auto", None, False
    parameters = parameters_of(document, "")
    if parameters:
        counted += len(parameters)
        parameter, dialect, device, timeout, binary = read_parameters(parameters, model.name, model.signature)
    if "outputs" in document:
        binary = _outputs(document["outputs"], binary)
    if cut != found.arrays or (counted != found.members and _members(document) != found.members):
        # A key that is given twice, or items among what is ignored, which nobody else looks at.
        check_framing(text, charge)
    ordered = tuple([inputs[name] for name in model.inputs])
    blobs = tuple([one for one in inputs.values() if one.size is not None])
    return Head(ordered, blobs, parameter, dialect, device, identifier, binary, timeout)


def _members(value: Any) -> int:
    """How many members all objects within `value` have."""
    if type(value) is dict:
        return len(value) + sum(map(_members, value.values()))
    return sum(map(_members, value)) if type(value) is list else 0


def _input(number: int, value: Any, model: Model, text: Buffer, found: FoundArrays, charge: Charge | None) -> Input:
    if type(value) is not dict:
        raise invalid_field(f"/inputs/{number}", "an input must be an object")
    name, datatype, shape = value.get("name"), value.get("datatype"), value.get("shape")
    if type(name) is not str:
        raise invalid_field(f"/inputs/{number}/name", "an input needs a name, a string")
    if name not in model.inputs:
        known = " and ".join(model.inputs)
        raise invalid_field(
            f"/inputs/{number}/name", f"{lossless_json.shown(name)!a} is not an input of {model.name}: {known}"
        )
    if type(datatype) is not str:
        raise invalid_field(f"/inputs/{number}/datatype", "an input needs a datatype, a string")
    if type(shape) is not list:
        raise invalid_field(f"/inputs/{number}/shape", "an input needs a shape, a list of integers")
    for size in shape:
        if type(size) is not int or size < 0:
            shape = _exact_shape(f"/inputs/{number}", shape)
            break
    size = None
    if "parameters" in value:
        size = _binary_size(value, f"/inputs/{number}")
    first = end = kind = 0
    if "data" in value:
        first, end, kind = found.places[int(value["data"])]
        if text[first] in _NO_LIST:
            if text[first] == _NO_LIST[0]:
                raise invalid_field(f"/inputs/{number}/data", "data must be a list")
            check_framing(text, charge)
            first = end = 0  # null
    if (size is None) == (end == 0):
        how = "an input has its items in data, or parameters/binary_data_size says how many bytes"
        raise invalid_field(f"/inputs/{number}", how)
    return Input(number, name, datatype, BY_OIP.get(datatype), tuple(shape), size, first, end, max(0, kind))


def _binary_size(value: Mapping[str, Any], pointer: str) -> int | None:
    parameters = parameters_of(value, pointer)
    refuse_shared_memory(parameters, pointer)
    size = parameters.get("binary_data_size")
    if type(size) is int or size is None:
        whole = size
    else:
        whole = lossless_json.integer(size)
        size = -1 if whole is None else whole
    if size is not None and size < 0:
        raise invalid_field(
            f"{pointer}/parameters/binary_data_size", "binary_data_size must be an integer of 0 or more"
        )
    return whole


def _exact_shape(pointer: str, sizes: list[Any]) -> tuple[int, ...]:
    shape = lossless_json.dimensions(sizes)
    if isinstance(shape, int):
        raise invalid_field(f"{pointer}/shape/{shape}", "a dimension must be an integer of 0 or more")
    return shape


def _outputs(given: Any, binary: bool) -> bool:
    """Whether the output is to be binary, from the request's `outputs` and its default."""
    if given is None:
        return binary
    if type(given) is not list:
        raise invalid_field("/outputs", "outputs must be a list")
    for number, value in enumerate(given):
        pointer = f"/outputs/{number}"
        if type(value) is not dict:
            raise invalid_field(pointer, "an output must be an object")
        if value.get("name") != OUTPUT:
            name = lossless_json.shown(value.get("name"))
            raise invalid_field(f"{pointer}/name", f"{name!a} is not an output of this model; {OUTPUT!r} is")
        if number:
            raise invalid_field(f"{pointer}/name", f"the output {OUTPUT!r} is asked for twice")
        parameters = parameters_of(value, pointer)
        refuse_shared_memory(parameters, pointer)
        if parameters.get("classification"):
            at = f"{pointer}/parameters/classification"
            raise GatherError("not_implemented", "classification of an output is not offered here", pointer=at)
        binary = flag(parameters, "binary_data", pointer, binary)
    return binary


def check_framing(text: Buffer, charge: Charge | None) -> None:
    """Raises malformed_request where the JSON part is not JSON, or names a key twice, and what `charge` raises."""
    fault = grammar_and_duplicate_keys.fault(text, charge, bare=True)
    if fault is not None:
        raise malformed(fault)


def _is_text(text: str) -> bool:
    return text.isascii() or lossless_json.printable(text) == text


def malformed(detail: str) -> GatherError:
    """The error for a body that cannot be read as a request."""
    return GatherError("malformed_request", detail)
