"""What a transport cannot carry: for each such cell of the conformance table, the refusal that a caller must get.

A gap without a refusal is one that no request can be in: the form has no way to say the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.cases import Case, Error, Told
from tests.conformance.transports import (
    QUANTIZED,
    SAFETENSORS,
    Grpc,
    Json,
    Protocol,
    Safetensors,
    Transport,
    contents,
    datatype,
)
from tests.grpc_api.messages import FIELDS
from tests.http.forms import COMPLEX, FLOAT8
from tests.parity.items import name_of

MISSING = "pv_nothing"
"""The name of no tensor."""
NOT_PROTOCOL = (*COMPLEX, *FLOAT8)
NOT_SAFETENSORS = ("string", "complex128")


@dataclass(frozen=True)
class Gap:
    """Cases that a transport does not carry. `error` has the pointers as the transport has them."""

    why: str
    holds: Callable[[Transport, Case], bool]
    error: Callable[[Transport, Case], Error] | None = None


def at(code: str, pointer: str) -> Error:
    return Error(code, ({"pointer": pointer},), None, 1)


def gap_of(transport: Transport, case: Case) -> Gap | None:
    """The first gap that the cell is in, None if the transport carries the case."""
    return next((gap for gap in GAPS if gap.holds(transport, case)), None)


def _by_protocol(transport: Transport) -> bool:
    return isinstance(transport, Protocol | Grpc)


def _no_model(transport: Transport, case: Case) -> Error:
    return Error("not_found" if isinstance(transport, Protocol) else "model_not_found", None)


def _first(case: Case, wrong: Callable[[Told], bool]) -> tuple[int, str]:
    """Number and name of the first array that is `wrong`."""
    return next((number, name) for number, (name, told) in enumerate(case.sent.items()) if wrong(told))


def _any(case: Case, wrong: Callable[[Told], bool]) -> bool:
    return any(map(wrong, case.sent.values()))


def _not_protocol(told: Told) -> bool:
    return told.dtype in NOT_PROTOCOL


def _fieldless(told: Told) -> bool:
    """Whether `contents` have no field for the type: half precision, complex, and types that are none."""
    return datatype(told) not in FIELDS


def _not_safetensors(told: Told) -> bool:
    return told.dtype in NOT_SAFETENSORS


def _held_types(case: Case) -> list[str]:
    """The types of the resident tensors that are read, in the order of the request."""
    if case.features is not None:
        return [
            name_of(case.tables[one["tensor"]]) if one.get("tensor") in case.tables else "" for one in case.features
        ]
    return [case.arrays["data"].dtype] if case.resident is not None and "data" in case.arrays else []


def _answers_safetensors(transport: Transport) -> bool:
    return (isinstance(transport, Safetensors) and transport.accept is None) or (
        isinstance(transport, Json) and transport.accept == SAFETENSORS
    )


def _of_held(wrong: tuple[str, ...]) -> Callable[[Transport, Case], Error]:
    """The refusal of a resident tensor of such a type, at its name."""

    def error(transport: Transport, case: Case) -> Error:
        if case.features is None:
            return at("unsupported_dtype", transport.pointer(case, "/data/tensor"))
        number = next(number for number, dtype in enumerate(_held_types(case)) if dtype in wrong)
        return at("unsupported_dtype", transport.pointer(case, f"/features/{number}/tensor"))

    return error


def _packs(transport: Transport) -> bool:
    """Whether items travel as their bytes."""
    return (
        isinstance(transport, Safetensors)
        or (isinstance(transport, Json) and transport.form in ("base64", "mixed"))
        or (isinstance(transport, Protocol) and transport.binary)
        or (isinstance(transport, Grpc) and not transport.typed)
    )


def _said_by_grpc(case: Case) -> bool:
    numbers = [value for value in case.parameters.values() if type(value) is int]
    sizes = [size for told in case.sent.values() for size in told.shape]
    return all(-(2**63) <= value < 2**64 for value in numbers) and all(size < 2**63 for size in sizes)


def _in_contents(told: Told) -> bool:
    """Whether the field of `contents` takes the items, in and out of the bounds of their type."""
    field = FIELDS.get(datatype(told), "fp32_contents")
    kinds: dict[str, tuple[type, ...]] = {
        "bool": (bool,),
        "fp32": (int, float),
        "fp64": (int, float),
        "byte": (bytes, str),
    }
    taken = kinds.get(field[:4], (int,))
    low, high = {"int_c": (-(2**31), 2**31), "int64": (-(2**63), 2**63), "uint_": (0, 2**32)}.get(field[:5], (0, 2**64))
    return all(  # protobuf rounds what float32 does not hold
        type(item) in taken and (taken != (int,) or low <= item < high) and not (type(item) is str and "\ud800" in item)
        for item in contents(told)
    ) and (told.held or field != "fp32_contents")


GAPS = (
    Gap("a gradient has no model", lambda by, case: _by_protocol(by) and case.path.endswith("/backward"), _no_model),
    Gap(
        "a scatter into a resident tensor has no model",
        lambda by, case: _by_protocol(by) and case.path.startswith("/tensors/"),
        _no_model,
    ),
    Gap(
        "a parameter or a size is an integer of 64 bits in gRPC",
        lambda by, case: isinstance(by, Grpc) and not _said_by_grpc(case),
    ),
    Gap("items without bytes are not packed", lambda by, case: _packs(by) and _any(case, lambda told: not told.held)),
    Gap(
        "a field of contents has one kind of items",
        lambda by, case: isinstance(by, Grpc) and by.typed and _any(case, lambda told: not _in_contents(told)),
    ),
    Gap(
        "a query has no types",
        lambda by, case: isinstance(by, Safetensors) and isinstance(case.parameters.get("lda_coeff"), str),
    ),
    Gap(
        "items that are not as many as the shape says have no nesting",
        lambda by, case: (
            isinstance(by, Json) and by.form not in ("flat", "base64") and _any(case, lambda told: not told.counted)
        ),
    ),
    Gap(
        "a resident tensor is a model of GatherND alone",
        lambda by, case: _by_protocol(by) and case.resident is not None and case.path not in ("/gathernd", QUANTIZED),
        lambda by, case: at("invalid_field", "/inputs"),
    ),
    Gap(
        "a resident tensor that is not there is no model",
        lambda by, case: _by_protocol(by) and case.path == "/gathernd" and case.resident == MISSING,
        lambda by, case: Error("model_not_found", None),
    ),
    Gap(
        "contents have no field for some types",
        lambda by, case: isinstance(by, Grpc) and by.typed and _any(case, _fieldless),
        lambda by, case: at("invalid_field", f"/inputs/{_first(case, _fieldless)[0]}/contents/fp32_contents"),
    ),
    Gap(
        "the protocol has no complex types and no floats of 8 bits",
        lambda by, case: _by_protocol(by) and _any(case, _not_protocol),
        lambda by, case: at("unsupported_dtype", f"/inputs/{_first(case, _not_protocol)[0]}/datatype"),
    ),
    Gap(
        "the protocol has no complex types and no floats of 8 bits, in resident tensors either",
        lambda by, case: (
            _by_protocol(by)
            and not set(NOT_PROTOCOL).isdisjoint(_held_types(case))
            and (case.error is None or case.features is None)
        ),
        lambda by, case: (
            Error("unsupported_dtype", None) if case.features is None else _of_held(NOT_PROTOCOL)(by, case)
        ),
    ),
    Gap(
        "safetensors has no strings and no complex128",
        lambda by, case: isinstance(by, Safetensors) and _any(case, _not_safetensors),
        lambda by, case: at("unsupported_dtype", f"/{_first(case, _not_safetensors)[1]}"),
    ),
    Gap(
        "safetensors has no strings and no complex128, in answers either",
        lambda by, case: (
            _answers_safetensors(by)
            and "data" in case.sent
            and case.sent["data"].dtype in NOT_SAFETENSORS
            and case.sent["data"].held
        ),
        lambda by, case: at("unsupported_dtype", "/data/dtype"),
    ),
    Gap(
        "safetensors has no strings and no complex128, of resident tensors either",
        lambda by, case: (
            _answers_safetensors(by)
            and not set(NOT_SAFETENSORS).isdisjoint(_held_types(case))
            and (case.error is None or case.features is not None)
        ),
        _of_held(NOT_SAFETENSORS),
    ),
)
