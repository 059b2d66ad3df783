"""The parameters of an infer request: axis or batch_dims, dialect, device, timeout, whether the output is binary.

Inputs and outputs have parameters too, whose forms are the same. Unknown ones are ignored, as the protocol asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from app.errors import GatherError, invalid_field
from app.tensors.gather_call import DEVICES
from app.tensors.operator_signature import PARAMETERS, Signature
from app.wire.json import lossless_json


def read_parameters(
    parameters: Mapping[str, Any], model: str, signature: Signature
) -> tuple[int, str, str, float | None, bool]:
    """The operator's parameter, its dialect, the device, the timeout and whether the output is to be binary.

    `parameters` are those of a request to the model of the name `model`. The timeout is in seconds, of the parameter's
    microseconds; 0 is the protocol's word for none. Raises invalid_field.
    """
    for other in PARAMETERS:
        if other in parameters and other != signature.parameter:
            raise invalid_field(f"/parameters/{other}", f"the model {model} has no parameter {other}")
    binary = flag(parameters, "binary_data_output", "", False)
    parameter = _integer(parameters, signature.parameter)
    dialect = _choice(parameters, "dialect", signature.dialects, signature.default_dialect)
    device = _choice(parameters, "device", DEVICES, "auto")
    timeout_us = _integer(parameters, "timeout")
    if timeout_us < 0:
        raise invalid_field("/parameters/timeout", "timeout must be 0 or more microseconds")
    timeout = min(timeout_us, 10**15) / 1e6 if timeout_us else None
    return parameter, dialect, device, timeout, binary


def parameters_of(value: Mapping[str, Any], pointer: str) -> Mapping[str, Any]:
    """The object `parameters` of the request, of an input or of an output; empty where there is none."""
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise invalid_field(f"{pointer}/parameters", "parameters must be an object")
    return parameters


def refuse_shared_memory(parameters: Mapping[str, Any], pointer: str) -> None:
    """Raises not_implemented for the parameters of an input or output that lies in shared memory."""
    if "shared_memory_region" in parameters:
        at = f"{pointer}/parameters/shared_memory_region"
        raise GatherError("not_implemented", "shared memory is not offered here; send the items", pointer=at)


def flag(parameters: Mapping[str, Any], name: str, pointer: str, default: bool) -> bool:
    """The parameter `name`, which is true or false, or its default."""
    value = parameters.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise invalid_field(f"{pointer}/parameters/{name}", f"{name} must be true or false")
    return value


def _integer(parameters: Mapping[str, Any], name: str) -> int:
    value = lossless_json.integer(parameters.get(name, 0))
    if value is None:
        raise invalid_field(f"/parameters/{name}", f"{name} must be an integer")
    return value


def _choice(parameters: Mapping[str, Any], name: str, allowed: Collection[str], default: str) -> str:
    value = parameters.get(name, default)
    if type(value) is not str or value not in allowed:
        raise invalid_field(f"/parameters/{name}", f"{name} must be one of {', '.join(allowed)}")
    return value
