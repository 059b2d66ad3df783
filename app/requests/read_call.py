"""Builds a call from a document and its arrays, for every family of requests and every format.

A family is a row of `FAMILIES`. The row holds the family's model, its arrays in the order in which they are checked,
the checks that the model cannot express, and the call. To add a field, add a line to the model (`app.requests.schemas`)
and a field with the same name to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from app.errors import GatherError, Place
from app.requests.envelope_cache import Validated
from app.requests.fill_value import given_fill_value
from app.requests.read_key_fields import (
    check_gather,
    check_no_out_of_bounds,
    check_one_given,
    given_by_key,
    rows_of_bags,
)
from app.requests.request import Origin, ReadArray, Request
from app.requests.schemas.common_fields import apply_dialect, further_batch_dims
from app.requests.schemas.gather_request import NamedTensor, parameter_values
from app.requests.schemas.gather_request import Tensor as Described
from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.lookup_request import (
    SETTINGS,
    LookupParameters,
    LookupRequest,
    check_arrays_given,
    check_feature_count,
    check_last_offset,
)
from app.requests.schemas.member_types import ABSENT, RequestModel
from app.requests.schemas.operator_request import TABLE_REQUESTS, check_one_shape, check_reduction, operator_request
from app.tensors.backward_call import BackwardCall
from app.tensors.by_key import KEYS, ByKey
from app.tensors.gather_call import Call, Encoding
from app.tensors.lookup_call import ARRAYS, Feature, LookupCall
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import KeyedCall, ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates

Arguments = dict[str, Any]
Tensors = dict[str, Any]
_INDICES_ALONE: Final = ["indices"]
_FAULTS_OF_ARRAYS: Final = ("invalid_field", "unsupported_dtype", "element_count_mismatch", "value_not_representable")
"""Error codes for an array, in order of precedence."""


class Family(NamedTuple):
    """A family of requests. The first parameter of each function is the request's signature.

    `model` returns the model that validates documents. `arrays` yields the name and description of each array in valid
    fields. `arguments` returns the arguments of a call other than arrays, and performs the checks that the model cannot
    express. `call` builds the call.
    """

    model: Callable[[Any], type[RequestModel]]
    arrays: Callable[[Any, Any], Iterable[tuple[str, Any]]]
    arguments: Callable[[Any, Any, Origin, Collection[str]], Arguments]
    call: Callable[[Any, Validated, Tensors, Limits], Any]


def validate(row: Signature, request: Request, limits: Limits) -> Any:
    """Validate a document and return its fields. Raises invalid_field at the first invalid field, and limit_exceeded.

    An array that `Request.array` refuses also counts as an invalid field.
    """
    family, document = FAMILIES[row.kind], request.document
    features = document.get("features") if row.kind == "lookup" and type(document) is dict else None
    if type(features) is list:
        check_feature_count(len(features), request.origin.fields, limits.features)
    model = family.model(row) if request.beside is None else LookupParameters
    try:
        return model.model_validate(document)
    except ValidationError as refusal:
        origin = request.origin
        faults = InvalidFields(
            refusal,
            model,
            document,
            origin.fields,
            {f"{origin.fields}/{name}/tensor": origin.resident(name) for name in row.inputs},
        )
    faults.raise_unknown()
    for name, given in _members(model, document, request.origin):
        if name == "indices" and row.keyed:
            check_one_given(document, request.origin.array)
        if name == "features" and request.beside is None:
            wrong = faults.first_item(name)
            _check_features(given[:wrong] if isinstance(given, list) else (), request)
        faults.raise_first(name)
        if request.array is not None and name in row.arrays and type(given) is dict and "tensor" not in given:
            request.array(name, Described.model_validate(given))
    raise AssertionError("the request was refused, and nothing is wrong with it")


def _members(model: type[RequestModel], document: Any, origin: Origin) -> Iterator[tuple[str, Any]]:
    """Yield the names of a model's members in the order of their checks, with their values in a document.

    Features come first. The name of a resident tensor comes last if it is not inside `data`.
    """
    names = [field.alias or name for name, field in model.model_fields.items()]
    last = "data" if origin.fields else None
    names.sort(key=lambda name: (name != "features") + (name == last))
    return ((name, document.get(name)) for name in names)


def _check_features(features: Any, request: Request) -> None:
    """Raise invalid_field at the first invalid array. The other members of the features have already been validated."""
    for number, feature in enumerate(features):
        if type(feature) is not dict:
            continue
        for name in ARRAYS:
            if request.array is not None and type(feature.get(name)) is dict:
                request.array(f"features/{number}/{name}", Described.model_validate(feature[name]))
        _check_arrays_given(number, feature.get("pooling", "none"), [*feature], request.origin)


def finish_validation(row: Signature, request: Request, fields: Any) -> tuple[Validated, dict[str, ReadArray]]:
    """Return the validated request and its arrays. Raises invalid_field for rules that the model cannot express."""
    family = FAMILIES[row.kind]
    arrays: tuple[tuple[str, Any], ...] = ()
    given: dict[str, ReadArray] = {}
    if request.array is not None:
        arrays = tuple(family.arrays(row, fields))
        given = {name: request.array(name, described) for name, described in arrays}
    arguments = family.arguments(row, fields, request.origin, request.beside or given)
    encoding: Encoding = getattr(fields, "output_encoding", "values")
    return Validated(fields, arguments, arrays, encoding), given


def read_arrays(given: Mapping[str, ReadArray]) -> Tensors:
    """Read the arrays.

    If several are invalid, `_FAULTS_OF_ARRAYS` decides which error is raised. If several arrays have that error, the
    first of them is reported.
    """
    tensors: Tensors = {}
    wrong: dict[str, GatherError] = {}
    for name, (read, arguments) in given.items():
        try:
            tensors[name] = read(*arguments)
        except GatherError as error:
            if error.code not in _FAULTS_OF_ARRAYS:
                raise
            wrong.setdefault(error.code, error)
    if wrong:
        raise next(wrong[code] for code in _FAULTS_OF_ARRAYS if code in wrong)
    return tensors


def make_call(row: Signature, validated: Validated, tensors: Tensors, limits: Limits) -> Any:
    """Build the call from a validated request and its arrays."""
    return FAMILIES[row.kind].call(row, validated, tensors, limits)


def first_too_long_string(tensors: Iterable[Tensor], limits: Limits) -> GatherError | None:
    """Return the error for the first string in `tensors` that is too long, or None."""
    found = (too_long_string(tensor, limits) for tensor in tensors if isinstance(tensor, PackedStrings))
    return next(filter(None, found), None)


def too_long_string(tensor: PackedStrings, limits: Limits, what: str = "a string") -> GatherError | None:
    """Return the error for the first string that is too long, or None. `what` is the word for the string."""
    item = tensor.first_longer(limits.string_bytes)
    if item < 0:
        return None
    return GatherError(
        "limit_exceeded",
        f"{what} has more than {limits.string_bytes} bytes of UTF-8",
        places=[Place(tensor.locate(item), coordinates(item, tensor.shape))],
        facts={"limit": "string_bytes", "maximum": limits.string_bytes},
    )


def _inputs(row: Signature, fields: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and description of each array in a request, excluding inputs that are resident tensors or
    missing.
    """
    for name in row.arrays:
        value = getattr(fields, name)
        if value is not ABSENT and not isinstance(value, NamedTensor):
            yield name, value


@cache
def _plain_fields(row: Signature, model: Any, call: Any) -> tuple[tuple[str, Any], ...]:
    """Return the call's fields that are copied from the request's model, with their defaults."""
    own = ((field.name, field.default) for field in dataclass_fields(call))
    return tuple((name, usual) for name, usual in own if name in model.model_fields and name not in row.inputs)


def _arguments(row: Signature, fields: RequestModel, call: Any, origin: Origin) -> Arguments:
    """Return the arguments of the call that are copied from valid fields, and the pointer of the fields.

    Leaves out values that equal the call's default, because each argument costs time in every call.
    """
    names = _plain_fields(row, type(fields), call)
    given = ((name, usual, getattr(fields, name)) for name, usual in names)
    return {name: value for name, usual, value in given if value != usual} | {"at": origin.fields}


def _operator_arguments(row: Signature, fields: Any, origin: Origin, given: Collection[str]) -> Arguments:
    arguments = _arguments(row, fields, Call, origin)
    arguments |= {
        "operator": row.operator,
        "parameters": parameter_values(row.parameters, fields),
        "data_pointer": origin.tensor,
    }
    if isinstance(fields.data, NamedTensor):
        arguments["data"] = fields.data.tensor
    if row.further:
        given = {name: getattr(fields, name) for name in row.further}
        arguments["further"] = {name: one.tensor for name, one in given.items() if isinstance(one, NamedTensor)}
    if row.kind == "scatter":
        check_reduction(row, fields.dialect, fields.reduction, origin.field("reduction"))
    else:
        batch_dims, mode = apply_dialect(row, fields, origin.fields)
        fills: str = mode
        asked_by = "out_of_bounds"
        if row.keyed:
            by_key = _gather_by_key(fields, origin)
            if by_key is not None:
                arguments["by_key"] = by_key
                mode, fills, asked_by = "error", by_key.missing, "missing"
        fill_value = given_fill_value(fields, fills, origin.field("fill_value"), asked_by)
        arguments |= {"batch_dims": batch_dims, "out_of_bounds": mode, "fill_value": fill_value}
    return arguments


def _gather_by_key(fields: Any, origin: Origin) -> ByKey | None:
    """Return the fields of a gather by key, or None for a gather with indices. Raises invalid_field."""
    check_one_given([name for name in ("indices", KEYS) if getattr(fields, name) is not ABSENT], origin.array)
    by_key = given_by_key(fields, fields.keys is not ABSENT, origin.field)
    if by_key is not None:
        check_gather(fields, origin.array(KEYS), origin.field)
    return by_key


def _operator_call(row: Signature, validated: Validated, tensors: Tensors, limits: Limits) -> Call:
    if row.further:
        return _call_with_further_inputs(row, validated.arguments, tensors, limits)
    if KEYS in tensors:
        call = Call(**validated.arguments, indices=tensors[KEYS])
        call.over_limit = first_too_long_string([call.indices], limits)
        return call
    call = Call(**validated.arguments, **tensors)
    if type(call.data) is PackedStrings:
        call.over_limit = first_too_long_string([call.data], limits)
    return call


def _call_with_further_inputs(row: Signature, arguments: Arguments, tensors: Tensors, limits: Limits) -> Call:
    """Build the call of an operator that has inputs in addition to data and indices."""
    given = arguments["further"] | tensors
    further = {name: given[name] for name in row.further if name in given}
    own = {name: tensor for name, tensor in tensors.items() if name not in further}
    call = Call(**{**arguments, **own, "further": further})
    # String indices are refused later, because of their type.
    call.over_limit = first_too_long_string([tensor for name, tensor in tensors.items() if name != "indices"], limits)
    return call


def _gradient_arguments(row: Signature, fields: Any, origin: Origin, given: Collection[str]) -> Arguments:
    check_one_shape(fields, origin.fields)
    resident = fields.data_shape is ABSENT
    return _arguments(row, fields, BackwardCall, origin) | {
        "operator": row.operator,
        "shape": fields.tensor if resident else fields.data_shape,
        "parameters": parameter_values(row.parameters, fields),
        "shape_pointer": origin.field("tensor" if resident else "data_shape"),
        "batch_dims": further_batch_dims(row, fields, origin.fields),
    }


def _table_call(row: Signature) -> type[ScatterCall | KeyedCall]:
    return KeyedCall if KEYS in row.inputs else ScatterCall


def _table_scatter_call(
    row: Signature, validated: Validated, tensors: Tensors, limits: Limits
) -> ScatterCall | KeyedCall:
    over_limit = first_too_long_string(tensors.values(), limits)
    if over_limit is not None:
        raise over_limit
    return _table_call(row)(**tensors, **validated.arguments)


def _lookup_arrays(row: Signature, fields: Any) -> Iterator[tuple[str, Any]]:
    for number, feature in enumerate(fields.features):
        for name in ARRAYS:
            array = getattr(feature, name)
            if array is not ABSENT:
                yield f"features/{number}/{name}", array


def _lookup_arguments(row: Signature, fields: Any, origin: Origin, given: Collection[str]) -> Arguments:
    for number, feature in enumerate(fields.features):
        own = [name for name in ARRAYS if f"features/{number}/{name}" in given]
        if own != _INDICES_ALONE or feature.pooling != "none":
            _check_arrays_given(number, feature.pooling, own, origin)
        check_last_offset(feature, origin.field(f"features/{number}"))
    features = [_feature(number, feature, origin, given) for number, feature in enumerate(fields.features)]
    by_key = [settings["by_key"] for settings, _ in features]
    if None not in by_key:
        check_no_out_of_bounds(fields, origin.field)
    mode, asked_by = fields.out_of_bounds, "out_of_bounds"
    if mode != "fill" and any(by_key):
        asked_by = "missing"
        mode = next((one.missing for one in by_key if one is not None and one.missing == "fill"), mode)
    return _arguments(row, fields, LookupCall, origin) | {
        "features": features,
        "fill_value": given_fill_value(fields, mode, origin.field("fill_value"), asked_by),
    }


def _feature(
    number: int, fields: Any, origin: Origin, given: Collection[str]
) -> tuple[Arguments, list[tuple[str, str]]]:
    """Return the arguments of a feature other than arrays, and the names of its arrays in the feature and in the
    document.

    Raises invalid_field.
    """
    at = f"features/{number}"
    arrays = {name: place for name in ARRAYS if (place := f"{at}/{name}") in given}
    settings = {name: getattr(fields, name) for name in SETTINGS} | {"pointer": origin.field(at)}
    settings["by_key"] = given_by_key(fields, KEYS in arrays, lambda name: origin.field(f"{at}/{name}"))
    settings |= rows_of_bags(fields, KEYS in arrays, lambda name: origin.field(f"{at}/{name}"))
    if KEYS in arrays:
        arrays = {"indices": arrays.pop(KEYS)} | arrays
    return settings, [*arrays.items()]


def _check_arrays_given(number: int, pooling: Any, given: Iterable[str], origin: Origin) -> None:
    def pointer(name: str) -> str:
        return origin.array(f"features/{number}/{name}")

    check_one_given([*given], pointer)
    check_arrays_given(pooling, [*given], pointer)


def _lookup_call(row: Signature, validated: Validated, tensors: Tensors, limits: Limits) -> LookupCall:
    arguments = validated.arguments
    # A cached request may have been validated with other limits.
    check_feature_count(len(arguments["features"]), arguments["at"], limits.features)
    features = [
        Feature(**settings, **{name: tensors[place] for name, place in arrays})
        for settings, arrays in arguments["features"]
    ]
    return LookupCall(**{**arguments, "features": features})


_OPERATOR: Final = Family(operator_request, _inputs, _operator_arguments, _operator_call)
FAMILIES: Final[Mapping[str, Family]] = {
    "gather": _OPERATOR,
    "scatter": _OPERATOR,
    "gradient": Family(
        operator_request,
        _inputs,
        _gradient_arguments,
        lambda row, validated, tensors, limits: BackwardCall(**validated.arguments, **tensors),
    ),
    "table_scatter": Family(
        lambda row: TABLE_REQUESTS[row.operator],
        _inputs,
        lambda row, fields, origin, given: _arguments(row, fields, _table_call(row), origin),
        _table_scatter_call,
    ),
    "lookup": Family(lambda row: LookupRequest, _lookup_arrays, _lookup_arguments, _lookup_call),
}
