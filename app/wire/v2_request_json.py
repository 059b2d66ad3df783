"""The JSON of an infer request: what it says of the inputs, and where the items of those that it holds itself are.

The items are cut out (`find_arrays`) and a library reads the rest (`body_without_arrays`), as of a gather's body. Here
unknown members and parameters are ignored, as the protocol asks for; a parameter that another model has is an error,
since without it the answer would be another one. NaN and infinities may stand bare, as many libraries write them, which
is not JSON: as items of floats they are numbers, everywhere else they are null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from pydantic import ValidationError

from app.errors import GatherError, invalid_field
from app.near_name import instead_of, near_name, shorten
from app.requests.fill_value import read_fill_value_text
from app.requests.schemas.dialect_fields import apply_dialect
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.members import ABSENT
from app.requests.schemas.scatter_request import check_reduction
from app.requests.schemas.v2_infer_request import (
    InferInput,
    InferRequest,
    OperatorInferRequest,
    OperatorInput,
    Output,
    infer_request,
)
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_OIP, DTYPES, DType
from app.tensors.gather_call import FillValue, OutOfBounds
from app.tensors.lookup_call import LOOKUP
from app.tensors.operator_signature import OWN_FIELDS, Signature
from app.tensors.scatter_call import Reduction
from app.wire.json import grammar_and_duplicate_keys, lossless_json
from app.wire.json.body_without_arrays import MOST_ARRAYS, count_members, read_envelope
from app.wire.json.codec_constants import PLAIN_NUMBERS
from app.wire.json.find_arrays import FoundArrays, find_inputs
from app.wire.json.read_values import Values, outline_of, reading_memory
from app.wire.little_endian_items import Charge, view_of

OUTPUT: Final = get_args(Output)[0]
_MOST_MICROSECONDS: Final = 10**15
NO_ARRAYS: Final = FoundArrays(True, 0, PLAIN_NUMBERS, 0, ())
_NO_LIST: Final = b"{n"
_INDICES: Final = str(DTYPES["int64"].oip)
"""The datatype of indices that say none."""


class Model:
    """A model as its requests see it: an operator, or one on the resident tensor that `reference` names.

    `inputs` are the names of its inputs, `foreign` those of parameters that only other models have, `request` is what
    its requests have to be, `validate` makes one, and `input` is what each of its inputs has to be.
    """

    __slots__ = ("foreign", "input", "inputs", "name", "reference", "request", "resident", "signature", "validate")

    def __init__(self, name: str, signature: Signature, resident: bool = False, reference: str | None = None) -> None:
        self.name = name
        self.reference = reference or name
        self.signature = signature
        self.resident = resident
        self.inputs = tuple(name for name in signature.inputs if name != "data") if resident else signature.inputs
        self.foreign = tuple(name for name in (*OWN_FIELDS, LOOKUP) if name not in signature.own_fields)
        self.input = InferInput if resident else OperatorInput
        self.request = infer_request(signature, base=InferRequest if resident else OperatorInferRequest)
        self.validate = self.request.__pydantic_validator__.validate_python  # `model_validate` takes a seventh longer


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
    out_of_bounds: OutOfBounds
    fill_value: FillValue | None
    reduction: Reduction
    batch_dims: int


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
    head, counted, cut = _head(document, model, text, found, charge)
    if cut != found.arrays or (counted != found.members and count_members(document) != found.members):
        # A key that is given twice, or items among what is ignored, which nobody else looks at.
        check_framing(text, charge)
    return head


def head_of_document(document: Any, model: Model) -> Head:
    """The same of a request in another form than JSON: `document` is what its JSON would be.

    Each input has its size in `binary_data_size`, and none has `data`. Raises invalid_field, not_implemented.
    """
    return _head(document, model, b"", NO_ARRAYS, None)[0]


def _head(
    document: Any, model: Model, text: Buffer, found: FoundArrays, charge: Charge | None
) -> tuple[Head, int, int]:
    """What `document` says, how many members its objects have that are read, and how many have `data`."""
    fields = _valid_fields(document, model, text, found, charge)
    inputs: dict[str, Input] = {}
    counted, cut = len(document), 0
    for number, (described, given) in enumerate(zip(fields.inputs, document["inputs"], strict=True)):
        one = _input(number, described, document["inputs"], model, text, found, charge)
        if one.name in inputs:
            raise given_twice(number, one.name)
        inputs[one.name] = one
        counted += len(given) + len(given.get("parameters") or ())
        cut += "data" in given
    _check_all_given(inputs, model)
    parameters: Any = fields.parameters
    signature = model.signature
    parameter, dialect, device, timeout, binary = 0, signature.default_dialect, "auto", None, False
    out_of_bounds: OutOfBounds = "error"
    fill_value = None
    reduction: Reduction = "none"
    batch_dims = 0
    if parameters is not ABSENT:
        counted += len(document["parameters"])
        _check_own_parameter(document["parameters"], model)
        if signature.parameter is not None:
            parameter = getattr(parameters, signature.parameter)
        dialect, device = parameters.dialect, parameters.device
        timeout = min(parameters.timeout, _MOST_MICROSECONDS) / 1e6 if parameters.timeout else None
        binary = parameters.binary_data_output or False
        batch_dims, out_of_bounds = apply_dialect(signature, parameters, "/parameters", signature.parameter or "")
        if parameters.fill_value is not ABSENT:
            fill_value = read_fill_value_text(parameters.fill_value, out_of_bounds, "/parameters/fill_value")
        if signature.kind == "scatter":
            reduction = parameters.reduction
            check_reduction(signature, dialect, reduction, "/parameters/reduction")
    for number, output in enumerate(fields.outputs or ()):
        if number:
            raise _asked_twice(number)
        if output.parameters is not ABSENT and output.parameters.binary_data is not ABSENT:
            binary = output.parameters.binary_data
    ordered = tuple([inputs[name] for name in model.inputs])
    blobs = tuple([one for one in inputs.values() if one.size is not None])
    head = Head(
        ordered, blobs, parameter, dialect, device, fields.id, binary, timeout, out_of_bounds, fill_value, reduction,
        batch_dims,
    )  # fmt: skip
    return head, counted, cut


def _valid_fields(document: Any, model: Model, text: Buffer, found: FoundArrays, charge: Charge | None) -> InferRequest:
    """`document`, validated. Raises what is wrong first: of each input, `_input` refuses what models cannot say."""
    try:
        fields: InferRequest = model.validate(document)
        return fields
    except ValidationError as refusal:
        faults = InvalidFields(refusal, model.request, document)
    faults.raise_unknown()
    faults.raise_first("id")
    if type(document.get("inputs")) is not list:
        raise faults.first()
    names = set()
    for number, value in enumerate(document["inputs"]):
        place = ("inputs", number)
        faults.raise_first(*place, "name")
        if type(value) is dict:
            _check_name(number, value["name"], document["inputs"], model)
        faults.raise_first(*place)
        one = _input(number, model.input.model_validate(value), document["inputs"], model, text, found, charge)
        if one.name in names:
            raise given_twice(number, one.name)
        names.add(one.name)
    _check_all_given(names, model)
    if type(document.get("parameters")) is dict:
        _check_own_parameter(document["parameters"], model)
    faults.raise_first("parameters", "binary_data_output")
    if model.signature.parameter is not None:
        faults.raise_first("parameters", model.signature.parameter)
    faults.raise_first("parameters")
    if type(document["outputs"]) is list and len(document["outputs"]) > 1:
        faults.raise_first("outputs", 0)
        faults.raise_first("outputs", 1, "name")
        if type(document["outputs"][1]) is dict:
            raise _asked_twice(1)
    raise faults.first()


def _check_name(number: int, name: str, given: Sequence[Any], model: Model) -> None:
    """Raises invalid_field if the model has no input `name`; `given` are the inputs of the request."""
    if name not in model.inputs:
        known = " and ".join(model.inputs)
        shown = str(lossless_json.shown(name))
        others = [str(other.get("name")) for other in given if type(other) is dict]
        missing = [one for one in model.inputs if one not in others]
        hint = f"Leave out the input {shorten(shown)!r}, since the inputs of {model.name} are {known}."
        if missing:
            hint = f"{instead_of(shown, near_name(shown, missing) or missing[0])}, an input of {model.name}."
        raise invalid_field(f"/inputs/{number}/name", f"{shown!a} is not an input of {model.name}: {known}", hint)


def given_twice(number: int, name: str) -> GatherError:
    """The error for an input whose name another one has."""
    return invalid_field(
        f"/inputs/{number}/name", f"the input {name!a} is given twice", f"Give the input {name!a} once."
    )


def _asked_twice(number: int) -> GatherError:
    return invalid_field(
        f"/outputs/{number}/name", f"the output {OUTPUT!r} is asked for twice", f"Ask for {OUTPUT!r} once."
    )


def _check_all_given(names: Collection[str], model: Model) -> None:
    if len(names) < len(model.inputs):
        missing = next(name for name in model.inputs if name not in names)
        raise invalid_field("/inputs", f"the input {missing!a} is missing", f"Add the input {missing!a} to /inputs.")


def _check_own_parameter(parameters: Mapping[str, Any], model: Model) -> None:
    for other in model.foreign:
        if other in parameters:
            raise invalid_field(
                f"/parameters/{other}",
                f"the model {model.name} has no parameter {other}",
                f"Leave out {other!r}, since the model {model.name} has {model.signature.own_fields[0]}.",
            )


def _input(
    number: int,
    given: InferInput,
    all_given: Sequence[Any],
    model: Model,
    text: Buffer,
    found: FoundArrays,
    charge: Charge | None,
) -> Input:
    """An input whose members have been validated one by one.

    These rules are not said by its model: its name is that of an input of the model, and it has items in `data`, where
    a list or one item stands, or as many bytes behind the JSON as a parameter says.
    """
    name, parameters = given.name, given.parameters
    _check_name(number, name, all_given, model)
    size = None if parameters is ABSENT else parameters.binary_data_size
    datatype = _INDICES if given.datatype is ABSENT else given.datatype
    one = located_input(number, name, datatype, given.shape or (), size, given.data, text, found, charge)
    return one if given.shape is not ABSENT else one._replace(shape=_shape_of(one, text, charge))


def _shape_of(one: Input, text: Buffer, charge: Charge | None) -> tuple[int, ...]:
    """The shape of an input that says none: that of its lists, and of a flat list a row for each item."""
    if one.size is not None:
        raise invalid_field(
            f"{one.pointer}/shape",
            f"{one.name} needs a shape, since its items follow the JSON",
            f"Add 'shape' at {one.pointer}/shape, such as [2, 1] for two rows.",
        )
    if one.dtype is None:
        return ()  # it is refused for its datatype
    if charge is not None:
        charge(reading_memory(one.end - one.first))
    outline = outline_of(Values(view_of(text), one.name, one.dtype, None, one.first, one.end, one.depth, True))
    if outline is None:
        raise GatherError(
            "element_count_mismatch",
            f"{one.name}: the lists are not nested evenly",
            pointer=f"{one.pointer}/data",
            hint=f"Nest the lists at {one.pointer}/data evenly: one list of indices for each item that is gathered.",
        )
    shape, _ = outline
    return (*shape, 1) if len(shape) == 1 else shape


def located_input(
    number: int,
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    size: int | None,
    data: Any,
    text: Buffer,
    found: FoundArrays,
    charge: Charge | None,
) -> Input:
    """The rest of `_input`, for a model that has checked the name: `data` is the number of the array, if it has one."""
    first = end = kind = 0
    if data is not ABSENT:
        first, end, kind = found.places[data]
        if text[first] in _NO_LIST:
            if text[first] == _NO_LIST[0]:
                hint = f"Write a list at /inputs/{number}/data, such as [0]."
                raise invalid_field(f"/inputs/{number}/data", "data must be a list", hint)
            check_framing(text, charge)
            first = end = 0  # null
    if (size is None) == (end == 0):
        how = "an input has its items in data, or parameters/binary_data_size says how many bytes"
        hint = "Send the items in data, or as bytes behind the JSON with binary_data_size, and not both."
        raise invalid_field(f"/inputs/{number}", how, hint)
    return Input(number, name, datatype, BY_OIP.get(datatype), shape, size, first, end, max(0, kind))


def check_framing(text: Buffer, charge: Charge | None) -> None:
    """Raises malformed_request where the JSON part is not JSON, or names a key twice, and what `charge` raises."""
    fault = grammar_and_duplicate_keys.fault(text, charge, bare=True)
    if fault is not None:
        raise malformed(fault.detail, fault.hint)


def malformed(detail: str, hint: str | None = None) -> GatherError:
    """The error for a body that cannot be read as a request."""
    return GatherError("malformed_request", detail, hint=hint)
