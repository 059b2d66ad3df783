"""The gradients of the gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from numpy.typing import NDArray

from .. import _gradients
from .._arrays_of_others import as_type, has_no_type
from .._async_waiting import packed
from .._call_options import BackwardOptions
from .._gradients import SparseGradient
from .._retries import call_end
from .._selection import NamedTensor, resident_name
from .requests import AsyncRequests


class AsyncGradients(AsyncRequests):
    """Gradients of gathernd and gather."""

    @overload
    async def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, sparse: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, sparse: Literal[True], as_torch: bool = False,
        **options: Unpack[BackwardOptions],
    ) -> SparseGradient: ...  # fmt: skip
    @overload
    async def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, as_torch: Literal[True],
        sparse: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> Any: ...  # fmt: skip
    async def gathernd_backward(
        self,
        indices: Any,
        grad_output: Any,
        *,
        data_shape: Sequence[int] | None = None,
        tensor: str | NamedTensor | None = None,
        batch_dims: int = 0,
        lda_coeff: float = 1.0,
        sparse: bool = False,
        dialect: str = "onnx-13",
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Compute the gradient of GatherND: add each slice of `grad_output` at its index to zeros of the data's shape.

        `grad_output` has a float type and the shape of the gather's output. Give either `data_shape`, the shape of the
        gather's data, or `tensor`, the name of a resident tensor with that shape and grad_output's type (a list is
        converted to that type). Returns an array of the data's shape, multiplied by `lda_coeff`. With `sparse`, which
        requires batch_dims 0, returns a SparseGradient with only the slices that were gathered; `scatter` accepts it.
        `as_torch` returns PyTorch tensors.
        """
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, await self._dtype(name, until, headers))
        request = await packed(
            (indices, grad_output),
            _gradients.backward,
            "gathernd",
            indices,
            grad_output,
            data_shape,
            tensor,
            batch_dims,
            lda_coeff,
            sparse,
            dialect,
            as_torch,
        )
        return await self._run_until(request, until, headers)

    @overload
    async def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, sparse: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, sparse: Literal[True],
        as_torch: bool = False, **options: Unpack[BackwardOptions],
    ) -> SparseGradient: ...  # fmt: skip
    @overload
    async def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, as_torch: Literal[True],
        sparse: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> Any: ...  # fmt: skip
    async def gather_backward(
        self,
        indices: Any,
        grad_output: Any,
        *,
        data_shape: Sequence[int] | None = None,
        tensor: str | NamedTensor | None = None,
        axis: int = 0,
        batch_dims: int = 0,
        lda_coeff: float = 1.0,
        sparse: bool = False,
        dialect: str = "onnx-13",
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Compute the gradient of Gather: add each slice of `grad_output` at its index to zeros of the data's shape.

        `grad_output` has a float type and the shape of the gather's output. Give either `data_shape`, the shape of the
        gather's data, or `tensor`, the name of a resident tensor with that shape and grad_output's type (a list is
        converted to that type). Returns an array of the data's shape, multiplied by `lda_coeff`. With `sparse`, which
        requires axis 0, returns a SparseGradient with only the slices that were gathered; `scatter` accepts it. In the
        dialect openvino-8, `batch_dims` is as in `gather`. `as_torch` returns PyTorch tensors.
        """
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, await self._dtype(name, until, headers))
        request = await packed(
            (indices, grad_output),
            _gradients.backward,
            "gather",
            indices,
            grad_output,
            data_shape,
            tensor,
            axis,
            lda_coeff,
            sparse,
            dialect,
            as_torch,
            batch_dims,
        )
        return await self._run_until(request, until, headers)
