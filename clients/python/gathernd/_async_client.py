"""The client `AsyncClient`: the calls of `Client`, to await."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from numpy.typing import NDArray

from . import _endpoints, _gradients, _imports, _keys, _lookups, _scatters
from ._answers import SAFETENSORS, Alias, Result, ScatterInfo, TensorInfo
from ._arrays_of_others import as_type, has_no_type
from ._asyncio_transport import AsyncioTransport
from ._client import (
    READY_PAUSE,
    AxisGatherOptions,
    BackwardOptions,
    BlockQuantizedOptions,
    GatherOptions,
    GetOptions,
    ScatterOptions,
    TableScatterOptions,
    call_end,
)
from ._connection_settings import Certificate, ConnectionSettings, Verify, callers_headers, connection_settings
from ._endpoints import OutOfBounds, Reduction
from ._gradients import SparseGradient
from ._imports import ImportInfo
from ._keys import Missing
from ._lookups import Feature
from ._messages import Answer, Progress, Request
from ._resident_tensor import AsyncResidentTensor, NamedTensor, resident_name
from ._retries import Attempts, Retries, may_become_ready
from .errors import NotReady, TensorNotFound, TransportError

if TYPE_CHECKING:
    import httpx

    from ._httpx_transport import AsyncHttpxTransport

T = TypeVar("T")
P = ParamSpec("P")
LARGE_BYTES: Final = 1 << 20
"""Arrays and answers of so many bytes are packed and read by a thread, which the event loop does not wait for."""


class AsyncClient:
    """`Client` for asyncio: the same arguments, and the same methods to await. For use within one event loop at a time.

    Large arrays and files are packed by a thread, so that the event loop goes on.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float | httpx.Timeout | None = 60.0,
        retries: int | Retries = 3,
        headers: Mapping[str, str] | None = None,
        verify: Verify | None = None,
        cert: Certificate | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = connection_settings(url, key, timeout, retries, headers, verify, cert, transport)
        self._retries = settings.retries
        self._transport = AsyncioTransport(settings) if settings.direct else _over_httpx(settings, transport)

    @overload
    async def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, with_info: Literal[True],
        as_torch: bool = False, **options: Unpack[GatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> Any: ...  # fmt: skip
    async def gathernd(
        self,
        data: Any,
        indices: Any,
        batch_dims: int = 0,
        *,
        dialect: str = "onnx-13",
        device: str = "auto",
        out_of_bounds: OutOfBounds | None = None,
        fill_value: Any = None,
        output_dtype: Any = None,
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """GatherND, see `Client.gathernd`."""
        request = await _packed(
            (data, indices),
            _endpoints.gather,
            "gathernd",
            data,
            indices,
            batch_dims,
            dialect,
            device,
            out_of_bounds,
            fill_value,
            output_dtype,
            with_info,
            as_torch,
        )
        return await self._run(request, timeout, headers)

    @overload
    async def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, with_info: Literal[False] = False,
        found: Literal[False] = False, as_torch: Literal[False] = False, **options: Unpack[AxisGatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, with_info: Literal[True],
        found: bool = False, as_torch: bool = False, **options: Unpack[AxisGatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, found: Literal[False] = False, **options: Unpack[AxisGatherOptions],
    ) -> Any: ...  # fmt: skip
    @overload
    async def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, found: Literal[True],
        with_info: bool = False, as_torch: bool = False, **options: Unpack[AxisGatherOptions],
    ) -> Result: ...  # fmt: skip
    async def gather(
        self,
        data: Any,
        indices: Any = None,
        axis: int = 0,
        *,
        keys: Any = None,
        missing: Missing | None = None,
        missing_row: Any = None,
        found: bool = False,
        batch_dims: int = 0,
        dialect: str = "onnx-13",
        device: str = "auto",
        out_of_bounds: OutOfBounds | None = None,
        fill_value: Any = None,
        output_dtype: Any = None,
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Gather, see `Client.gather`."""
        request = await _packed(
            (data, indices, keys),
            _keys.gather,
            data,
            indices,
            keys,
            axis,
            batch_dims,
            dialect,
            device,
            out_of_bounds,
            missing,
            missing_row,
            found,
            fill_value,
            output_dtype,
            with_info,
            as_torch,
        )
        return await self._run(request, timeout, headers)

    @overload
    async def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, with_info: Literal[True],
        as_torch: bool = False, **options: Unpack[GatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> Any: ...  # fmt: skip
    async def gather_elements(
        self,
        data: Any,
        indices: Any,
        axis: int = 0,
        *,
        dialect: str = "onnx-13",
        device: str = "auto",
        out_of_bounds: OutOfBounds | None = None,
        fill_value: Any = None,
        output_dtype: Any = None,
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """GatherElements, see `Client.gather_elements`."""
        request = await _packed(
            (data, indices),
            _endpoints.gather,
            "gather_elements",
            data,
            indices,
            axis,
            dialect,
            device,
            out_of_bounds,
            fill_value,
            output_dtype,
            with_info,
            as_torch,
        )
        return await self._run(request, timeout, headers)

    @overload
    async def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False, **options: Unpack[BlockQuantizedOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        with_info: Literal[True], as_torch: bool = False, **options: Unpack[BlockQuantizedOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        as_torch: Literal[True], with_info: Literal[False] = False, **options: Unpack[BlockQuantizedOptions],
    ) -> Any: ...  # fmt: skip
    async def gather_block_quantized(
        self,
        data: Any,
        indices: Any,
        scales: Any,
        zero_points: Any = None,
        *,
        gather_axis: int = 0,
        quantize_axis: int = -1,
        block_size: int = 128,
        bits: int = 4,
        out_of_bounds: OutOfBounds | None = None,
        fill_value: Any = None,
        output_dtype: Any = None,
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """GatherBlockQuantized, see `Client.gather_block_quantized`."""
        parameters = {
            "gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": block_size, "bits": bits,
        }  # fmt: skip
        request = await _packed(
            (data, indices, scales, zero_points),
            _endpoints.gather_block_quantized,
            data,
            indices,
            scales,
            zero_points,
            parameters,
            out_of_bounds,
            fill_value,
            output_dtype,
            with_info,
            as_torch,
        )
        return await self._run(request, timeout, headers)

    async def lookup(
        self,
        features: Sequence[Feature | tuple[Any, ...] | Mapping[str, Any]],
        *,
        concat: bool = True,
        out_of_bounds: OutOfBounds = "error",
        fill_value: Any = None,
        output_dtype: Any = None,
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Rows of many resident tensors in one request, single ones or bags of them, pooled to one.

        Each feature is a `Feature`, or its fields in a tuple or dict: the name of a tensor, indices of rows along its
        first axis, and for bags `offsets` (where each begins) or `lengths`, `pooling` (sum, mean or max) and `weights`.
        It may have `keys` in place of indices, with `missing`, `missing_row` and `found` as `gather` has them.
        A list of weights takes the tensor's type, for which the service is asked. `features_of` makes features of a
        KeyedJaggedTensor's values and lengths. Returns the features' outputs joined on axis 1, which takes equal types
        and numbers of rows; without `concat` a list of an output for each.
        `with_info`, and a feature with `found`, return a LookupResult, `as_torch` PyTorch's tensors. Sums go in index
        order in float32 (float64 for float64) and are rounded once. Each tensor is read in one content, however many
        features name it.
        """
        until = call_end(timeout)
        named = _lookups.as_features(features)
        dtypes = {name: await self._dtype(name, until, headers) for name in _lookups.without_weight_type(named)}
        typed = _lookups.with_weight_types(named, dtypes)
        request = _lookups.lookup(typed, concat, out_of_bounds, fill_value, output_dtype, with_info, as_torch)
        return await self._run_until(request, until, headers)

    @overload
    async def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[ScatterOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        as_torch: Literal[True], with_info: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> Any: ...  # fmt: skip
    async def scatternd(
        self,
        data: Any,
        indices: Any,
        updates: Any,
        *,
        reduction: Reduction = "none",
        dialect: str = "onnx-18",
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """See `Client.scatternd`."""
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, await self._dtype(name, until, headers))
        request = await _packed(
            (data, indices, updates),
            _scatters.scatter_into_copy,
            "scatternd",
            data,
            indices,
            updates,
            None,
            reduction,
            dialect,
            with_info,
            as_torch,
        )
        return await self._run_until(request, until, headers)

    @overload
    async def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[ScatterOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        as_torch: Literal[True], with_info: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> Any: ...  # fmt: skip
    async def scatter_elements(
        self,
        data: Any,
        indices: Any,
        updates: Any,
        axis: int = 0,
        *,
        reduction: Reduction = "none",
        dialect: str = "onnx-18",
        with_info: bool = False,
        as_torch: bool = False,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """See `Client.scatter_elements`."""
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, await self._dtype(name, until, headers))
        request = await _packed(
            (data, indices, updates),
            _scatters.scatter_into_copy,
            "scatter_elements",
            data,
            indices,
            updates,
            axis,
            reduction,
            dialect,
            with_info,
            as_torch,
        )
        return await self._run_until(request, until, headers)

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
        """The gradient of GatherND, see `Client.gathernd_backward`."""
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, await self._dtype(name, until, headers))
        request = await _packed(
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
        """The gradient of Gather, see `Client.gather_backward`."""
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, await self._dtype(name, until, headers))
        request = await _packed(
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

    async def put(
        self,
        name: str,
        source: Any,
        *,
        keys: Any = None,
        tensor: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        keep: int | None = None,
        note: str | None = None,
        replicas: int | None = None,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Make an array, a file or rows a resident tensor, see `Client.put`."""
        request = await _packed(
            (*(Path(one) if isinstance(one, str) else one for one in (source, keys)),),
            _endpoints.put,
            name,
            source,
            keys,
            tensor,
            if_match,
            if_none_match,
            prefault,
            lock,
            keep,
            note,
            replicas,
            progress,
        )
        return await self._run(request, timeout, headers)

    async def put_keys(
        self,
        name: str,
        keys: Any,
        *,
        if_match: str,
        keep: int | None = None,
        note: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Give the rows of a table keys, see `Client.put_keys`."""
        source = Path(keys) if isinstance(keys, str) else keys
        request = await _packed((source,), _keys.put_keys, name, keys, if_match, keep, note)
        return await self._run(request, timeout, headers)

    async def get_keys(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> NDArray[Any]:
        """The keys of a table, see `Client.get_keys`."""
        return await self._run(_keys.get_keys(name, if_match), timeout, headers)

    @overload
    async def get(
        self, name: str, *, out: NDArray[Any] | None = None, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GetOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, out: NDArray[Any] | None = None, with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[GetOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    async def get(
        self, name: str, *, out: None = None, with_info: Literal[False] = False, as_torch: Literal[True],
        **options: Unpack[GetOptions],
    ) -> Any: ...  # fmt: skip
    async def get(
        self,
        name: str,
        *,
        rows: tuple[int, int] | slice | None = None,
        if_match: str | None = None,
        out: NDArray[Any] | None = None,
        with_info: bool = False,
        as_torch: bool = False,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """A resident tensor or some of its rows, see `Client.get`."""
        request = _endpoints.get(name, rows, if_match, out, with_info, as_torch, progress)
        return await self._run(request, timeout, headers)

    def __getitem__(self, name: str) -> AsyncResidentTensor:
        """The resident tensor `name`, to be indexed as a NumPy array: client["items"][5:7]."""
        return AsyncResidentTensor(self, name)

    async def metadata(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """What the service knows of a resident tensor, see `Client.metadata`."""
        return await self._run(_endpoints.metadata(name), timeout, headers)

    async def set_replicas(
        self, name: str, replicas: int, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Say on how many shards of a cluster each range of a table is to be, see `Client.set_replicas`."""
        return await self._run(_endpoints.set_replicas(name, replicas), timeout, headers)

    async def exists(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Whether there is a resident tensor `name`."""
        try:
            await self.metadata(name, timeout=timeout, headers=headers)
        except TensorNotFound:
            return False
        return True

    async def tensors(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[TensorInfo]:
        """Every resident tensor by name, see `Client.tensors`; to be used with `async for`."""
        after = None
        while True:
            found = await self._run(_endpoints.tensors(after, page), timeout, headers)
            for info in found.tensors:
                yield info
            after = found.next
            if after is None:
                return

    async def delete(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remove a resident tensor, see `Client.delete`."""
        await self._run(_endpoints.delete(name, if_match), timeout, headers)

    async def alias(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Alias:
        """An alias and the version that it names, see `Client.alias`."""
        return await self._run(_endpoints.alias(name), timeout, headers)

    async def aliases(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Alias]:
        """Every alias by name, see `Client.aliases`; to be used with `async for`."""
        after = None
        while True:
            found = await self._run(_endpoints.aliases(after, page), timeout, headers)
            for alias in found.aliases:
                yield alias
            after = found.next
            if after is None:
                return

    async def put_alias(
        self,
        name: str,
        tensor: str,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Alias:
        """Make or move an alias, see `Client.put_alias`."""
        return await self._run(_endpoints.put_alias(name, tensor, if_match, if_none_match), timeout, headers)

    async def move_aliases(
        self,
        targets: Mapping[str, str],
        *,
        if_match: Mapping[str, str] | None = None,
        if_none_match: Mapping[str, str] | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[Alias]:
        """Make or move several aliases in one step, see `Client.move_aliases`."""
        return await self._run(_endpoints.move_aliases(targets, if_match, if_none_match), timeout, headers)

    async def delete_alias(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remove an alias, see `Client.delete_alias`."""
        await self._run(_endpoints.delete_alias(name, if_match), timeout, headers)

    async def import_tensor(
        self,
        name: str,
        url: str,
        *,
        tensor: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        keep: int | None = None,
        note: str | None = None,
        replicas: int | None = None,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Have the service import a tensor, and wait, see `Client.import_tensor`."""
        found = await self.begin_import(
            name, url, tensor=tensor, if_match=if_match, if_none_match=if_none_match, prefault=prefault, lock=lock,
            keep=keep, note=note, replicas=replicas, timeout=timeout, headers=headers,
        )  # fmt: skip
        return await self.wait_for_import(found, progress=progress, timeout=timeout, headers=headers)

    async def wait_for_import(
        self,
        begun: ImportInfo,
        *,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Wait for an import, see `Client.wait_for_import`."""
        found = begun
        tell, pause = _imports.told(found.name, found, progress), _imports.FIRST_PAUSE_S
        while True:
            tell(found.bytes_done)
            made = _imports.outcome(found)
            if made is not None:
                return made
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _imports.LONGEST_PAUSE_S)
            found = await self.find_import(found.id, timeout=timeout, headers=headers)

    async def begin_import(
        self,
        name: str,
        url: str,
        *,
        tensor: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        keep: int | None = None,
        note: str | None = None,
        replicas: int | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ImportInfo:
        """Begin an import, see `Client.begin_import`."""
        request = _imports.begin(name, url, tensor, if_match, if_none_match, prefault, lock, keep, note, replicas)
        return await self._run(request, timeout, headers)

    async def find_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ImportInfo:
        """How far an import is, see `Client.find_import`."""
        return await self._run(_imports.find(import_id), timeout, headers)

    async def imports(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[ImportInfo]:
        """Every import, see `Client.imports`; to be used with `async for`."""
        after = None
        while True:
            found = await self._run(_imports.page(after, page), timeout, headers)
            for one in found.imports:
                yield one
            after = found.next
            if after is None:
                return

    async def end_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """End or forget an import, see `Client.end_import`."""
        await self._run(_imports.end(import_id), timeout, headers)

    @overload
    async def scatter(
        self, name: str, indices: Any, updates: Any, reduction: Reduction = "none", *,
        with_info: Literal[False] = False, **options: Unpack[TableScatterOptions],
    ) -> str: ...  # fmt: skip
    @overload
    async def scatter(
        self, name: str, indices: Any, updates: Any, reduction: Reduction = "none", *,
        with_info: Literal[True], **options: Unpack[TableScatterOptions],
    ) -> ScatterInfo: ...  # fmt: skip
    async def scatter(
        self,
        name: str,
        indices: Any,
        updates: Any,
        reduction: Reduction = "none",
        *,
        with_info: bool = False,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Change slices of a resident tensor, see `Client.scatter`."""
        until = call_end(timeout)
        if has_no_type(updates):
            updates = as_type(updates, await self._dtype(name, until, headers))
        make = partial(_scatters.scatter_into_table, name, indices, updates, reduction, if_match, idempotency_key)
        info = await self._run_until(await _packed((indices, updates), make), until, headers)
        return info if with_info else info.etag

    async def ready(self, wait: float = 0.0) -> bool:
        """Whether the service answers and is ready to gather, see `Client.ready`."""
        end = monotonic() + wait
        while True:
            try:
                await self._run(_endpoints.ready(), max(end - monotonic(), 1.0), None, Retries(0))
            except (TransportError, NotReady) as error:
                if not may_become_ready(error):
                    raise
                if monotonic() + READY_PAUSE >= end:
                    return False
                await asyncio.sleep(READY_PAUSE)
            else:
                return True

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _dtype(self, name: str, until: float | None, headers: Mapping[str, str] | None) -> str:
        """The element type of a resident tensor, which a list is to take, in a call that must end at `until`."""
        info = await self._run_until(_endpoints.metadata(name), until, headers)
        return info.dtype

    async def _run(
        self,
        request: Request[T],
        timeout: float | None,
        headers: Mapping[str, str] | None,
        retries: Retries | None = None,
    ) -> T:
        """Send the request, again where `Attempts` says so, and return what its answer holds."""
        return await self._run_until(request, call_end(timeout), headers, retries)

    async def _run_until(
        self,
        request: Request[T],
        until: float | None,
        headers: Mapping[str, str] | None,
        retries: Retries | None = None,
    ) -> T:
        """The same of a call that must end at `until`, of `time.monotonic`; one may be of several requests."""
        fields = callers_headers(headers) if headers else {}
        attempts = Attempts(request, retries or self._retries, until)
        while True:
            if until is not None:
                fields["x-gathernd-timeout"] = f"{max(until - monotonic(), 1e-6):.6f}"
            outcome: Answer | TransportError
            try:
                outcome = await self._transport.send(request, until, fields)
            except TransportError as error:
                outcome = error
            if isinstance(outcome, Answer) and _takes_long(outcome):
                pause = await asyncio.to_thread(attempts.pause_after, outcome)
            else:
                pause = attempts.pause_after(outcome)
            if pause is None:
                return attempts.result
            await asyncio.sleep(pause)


async def _packed(sources: tuple[Any, ...], make: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What `make` returns, called by a thread where one of `sources` is large or a file."""
    if any(_is_large(source) for source in sources):
        return await asyncio.to_thread(make, *args, **options)
    return make(*args, **options)


def _is_large(source: Any) -> bool:
    """Whether an array, list, file or iterator may take long to pack; a str may be a file's path."""
    if isinstance(source, list | tuple):
        items = 1
        while isinstance(source, list | tuple) and source:
            items *= len(source)
            source = source[0]
        return 8 * items >= LARGE_BYTES
    return isinstance(source, os.PathLike | Iterator) or getattr(source, "nbytes", 0) >= LARGE_BYTES


def _takes_long(answer: Answer) -> bool:
    """Whether an answer may take long to read: arrays in the binary formats share its memory."""
    return len(answer.body) >= LARGE_BYTES and not answer.headers.get("content-type", "").startswith(SAFETENSORS)


def _over_httpx(settings: ConnectionSettings, transport: httpx.AsyncBaseTransport | None) -> AsyncHttpxTransport:
    from ._httpx_transport import AsyncHttpxTransport  # noqa: PLC0415  (httpx is slow to import, and seldom needed)

    return AsyncHttpxTransport(settings, transport)
