"""The gradients of the gathers: the request, and the parser of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Literal

from ._answers import SAFETENSORS, Decode
from ._array_bytes import decode, encode
from ._arrays_of_others import as_indices, decode_for_torch, encode_value
from ._endpoints import PARAMETERS, check_name
from ._messages import Answer, Request
from ._safetensors import read_tensors, write_safetensors
from ._selection import NamedTensor
from .errors import UnexpectedAnswer

Gathered = Literal["gathernd", "gather"]
_NAMES: Final = ({"grad_data"}, {"grad_indices", "grad_values"})


@dataclass(frozen=True, slots=True)
class SparseGradient:
    """A gradient with only the slices that were gathered, each once.

    indices  int64, ascending, never negative: index tuples for gathernd, entries for gather
    values   the slice at each index
    """

    indices: Any
    values: Any


def backward(
    operator: Gathered,
    indices: Any,
    grad_output: Any,
    data_shape: Sequence[int] | None,
    tensor: str | NamedTensor | None,
    parameter: int,
    lda_coeff: float,
    sparse: bool,
    dialect: str,
    as_torch: bool,
    batch_dims: int = 0,
) -> Request[Any]:
    """Build the request for a gather's gradient in safetensors, which has every float type.

    `parameter` is the operator's own parameter, and `batch_dims` is the additional parameter of `gather`. The result is
    an array or, with `sparse`, a SparseGradient. With `as_torch`, PyTorch tensors replace the arrays. Raises ValueError
    unless exactly one of `data_shape` and `tensor` is given, and TypeError if safetensors does not have grad_output's
    type or a size is not an integer.
    """
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        found = read_tensors(answer.body)
        if set(found) != _NAMES[sparse]:
            raise UnexpectedAnswer(f"the answer has the tensors {', '.join(found)}", answer.status)
        arrays = {name: make(*described) for name, described in found.items()}
        return SparseGradient(arrays["grad_indices"], arrays["grad_values"]) if sparse else arrays["grad_data"]

    if (data_shape is None) == (tensor is None):
        raise ValueError(
            "give either data_shape, the shape of the gather's data, or tensor, the name of a resident one"
        )
    tensors = {
        "indices": encode(as_indices(indices, widen=dialect.startswith("onnx"))),
        "grad_output": encode_value(grad_output),
    }
    if tensors["grad_output"].element_type.safetensors is None:
        raise TypeError(f"grad_output is of type {tensors['grad_output'].element_type.name}, which has no gradient")
    query = {PARAMETERS[operator]: str(parameter), "dialect": dialect, "lda_coeff": repr(float(lda_coeff))}
    if batch_dims:
        query["batch_dims"] = str(batch_dims)
    if sparse:
        query["sparse"] = "true"
    if data_shape is not None:
        query["data_shape"] = ",".join(str(index(size)) for size in data_shape)
    else:
        query["tensor"] = tensor.name if isinstance(tensor, NamedTensor) else str(tensor)
        check_name(query["tensor"])
    headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
    return Request("POST", f"/{operator}/backward", read, query, headers, write_safetensors(tensors))
