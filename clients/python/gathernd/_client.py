"""The client `Client`. `AsyncClient` has the same calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from numpy.typing import NDArray

from . import _endpoints, _gradients, _imports, _keys, _lookups, _scatters
from ._answers import Alias, Result, ScatterInfo, TensorInfo
from ._arrays_of_others import as_type, has_no_type
from ._connection_settings import Certificate, ConnectionSettings, Verify, callers_headers, connection_settings
from ._endpoints import OutOfBounds, Reduction
from ._gradients import SparseGradient
from ._imports import ImportInfo
from ._keys import Missing
from ._lookups import Feature
from ._messages import Answer, Progress, Request
from ._resident_tensor import NamedTensor, ResidentTensor, resident_name
from ._retries import Attempts, Retries, may_become_ready
from ._socket_transport import SocketTransport
from .errors import NotReady, TensorNotFound, TransportError

if TYPE_CHECKING:
    import httpx

    from ._httpx_transport import HttpxTransport

T = TypeVar("T")
READY_PAUSE = 0.1
"""Seconds between two questions whether the service is ready."""


class GatherOptions(TypedDict, total=False):
    """The options of a gather that do not change the type of its result."""

    dialect: str
    device: str
    out_of_bounds: OutOfBounds | None
    fill_value: Any
    output_dtype: Any
    timeout: float | None
    headers: Mapping[str, str] | None


class AxisGatherOptions(GatherOptions, total=False):
    """The same of a gather along an axis."""

    batch_dims: int
    keys: Any
    missing: Missing | None
    missing_row: Any


class BlockQuantizedOptions(TypedDict, total=False):
    """The options of a block-quantized gather that do not change the type of its result."""

    gather_axis: int
    quantize_axis: int
    block_size: int
    bits: int
    out_of_bounds: OutOfBounds | None
    fill_value: Any
    output_dtype: Any
    timeout: float | None
    headers: Mapping[str, str] | None


class ScatterOptions(TypedDict, total=False):
    """The options of a scatter into a copy that do not change the type of its result."""

    reduction: Reduction
    dialect: str
    timeout: float | None
    headers: Mapping[str, str] | None


class TableScatterOptions(TypedDict, total=False):
    """The options of a scatter into a resident tensor that do not change the type of its result."""

    if_match: str | None
    idempotency_key: str | None
    timeout: float | None
    headers: Mapping[str, str] | None


class BackwardOptions(TypedDict, total=False):
    """The options of a gradient that do not change the type of its result."""

    data_shape: Sequence[int] | None
    tensor: str | NamedTensor | None
    lda_coeff: float
    dialect: str
    timeout: float | None
    headers: Mapping[str, str] | None


class GetOptions(TypedDict, total=False):
    """The options of a download that do not change the type of its result."""

    rows: tuple[int, int] | slice | None
    if_match: str | None
    progress: Progress | bool | None
    timeout: float | None
    headers: Mapping[str, str] | None


class Client:
    """A client of the service at `url`; safe to use from several threads.

    url        where the service listens, by default GATHERND_URL, else http://127.0.0.1:8080; unix:/path for a Unix
               socket
    key        API key, where the service asks for one; by default GATHERND_API_KEY
    timeout    seconds that connecting, and each pause in sending or receiving, may take; or an httpx.Timeout
    retries    how often a request may be sent again where that is safe; `Retries` limits the time it may take, too
    headers    further header fields of every request
    verify     whom HTTPS trusts: True (public authorities), a file or folder of authorities, an ssl.SSLContext, or
               False (anybody: for tests); by default GATHERND_CA, a file or folder, else True
    cert       the client's own certificate: a file, or (certificate, key) or (certificate, key, password)
    transport  an httpx transport to use instead of the network, for tests and for HTTP/2

    Arrays may be NumPy arrays, PyTorch's, JAX's and CuPy's, anything with `__array__` or DLPack, or lists. They travel
    in the binary format; types that it lacks (complex128 and string) go as JSON with base64.

    Gathers raise IndexOutOfBounds for an index outside of its axis; `out_of_bounds` asks for clip (the nearest valid
    index), wrap (modulo the size of the axis) or fill (the slice is filled with `fill_value`, 0 unless given) in its
    place, and a Result says how many were `replaced`. `gather` in the dialect openvino-8 fills unless it is asked for
    something else, such as error. `output_dtype`, the name of a float type or NumPy's type, asks gathers and lookups of
    floats for an output of that type, each item rounded once.

    Calls take `timeout`, the seconds that the whole call may take, which the service is told too (X-Gathernd-Timeout),
    and `headers`, further header fields. They raise `ServiceError`s (one class for each code, in `gathernd.errors`) and
    `TransportError`s, and TypeError for an array of a type that the service does not have.

    A proxy that the environment names (HTTPS_PROXY, NO_PROXY) is used. Raises ValueError for a URL without a scheme.
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        settings = connection_settings(url, key, timeout, retries, headers, verify, cert, transport)
        self._retries = settings.retries
        self._transport = SocketTransport(settings) if settings.direct else _over_httpx(settings, transport)

    @overload
    def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, with_info: Literal[True],
        as_torch: bool = False, **options: Unpack[GatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def gathernd(
        self, data: Any, indices: Any, batch_dims: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> Any: ...  # fmt: skip
    def gathernd(
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
        """GatherND: each tuple in the last dimension of `indices` picks an element or slice of `data`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. `indices` has rank q >= 1 and
        integer type; under an ONNX dialect narrower integers are sent as int64. Returns an array of data's type and of
        shape indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1]:].

        [5, 3] is one tuple, an item: for rows 5 and 3 call `gather`.

        dialect is onnx-13, onnx-12, onnx-11 or openvino-8; device is auto, cpu or gpu. `with_info` returns a Result
        with the array, `as_torch` PyTorch's tensor in its place.
        """
        request = _endpoints.gather(
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
        return self._run(request, timeout, headers)

    @overload
    def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, with_info: Literal[False] = False,
        found: Literal[False] = False, as_torch: Literal[False] = False, **options: Unpack[AxisGatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, with_info: Literal[True],
        found: bool = False, as_torch: bool = False, **options: Unpack[AxisGatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, found: Literal[False] = False, **options: Unpack[AxisGatherOptions],
    ) -> Any: ...  # fmt: skip
    @overload
    def gather(
        self, data: Any, indices: Any = None, axis: int = 0, *, found: Literal[True],
        with_info: bool = False, as_torch: bool = False, **options: Unpack[AxisGatherOptions],
    ) -> Result: ...  # fmt: skip
    def gather(
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
        """Gather: each entry of `indices`, of any rank, picks a slice of `data` along `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. Returns an array of data's type and
        of shape data.shape[:axis] + indices.shape + data.shape[axis + 1:].

        dialect is onnx-13, onnx-11, onnx-1 or openvino-8; the last has `batch_dims`, leading dimensions that data and
        indices share, so that the shape is data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis + 1:].
        device is auto, cpu or gpu. `with_info` returns a Result with the array, `as_torch` PyTorch's tensor in its
        place.

        `keys` are ids of rows in place of `indices`, for a table that was uploaded with keys: integers or strings, as
        the table's are. For one that the table lacks, `missing` says what comes: error (KeyNotFound, the default); fill
        (a row of `fill_value`, 0 unless given); or row, the one that `missing_row` names by its position, such as 0, or
        by its key, such as {"key": 7}. A Result counts the `missing`; with `found=True` a Result comes, and has a bool
        for each key.
        """
        request = _keys.gather(
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
        return self._run(request, timeout, headers)

    @overload
    def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, with_info: Literal[True],
        as_torch: bool = False, **options: Unpack[GatherOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def gather_elements(
        self, data: Any, indices: Any, axis: int = 0, *, as_torch: Literal[True],
        with_info: Literal[False] = False, **options: Unpack[GatherOptions],
    ) -> Any: ...  # fmt: skip
    def gather_elements(
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
        """GatherElements: each entry of `indices` picks the item of `data` at its own place, but for `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. `indices` has the same rank, and on
        every axis but `axis` at most data's size. Returns an array of data's type and of the shape of `indices`, as
        NumPy's take_along_axis does.

        dialect is onnx-13, onnx-11 or openvino-6; device is auto or cpu. `with_info` returns a Result with the array,
        `as_torch` PyTorch's tensor in its place.
        """
        request = _endpoints.gather(
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
        return self._run(request, timeout, headers)

    @overload
    def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False, **options: Unpack[BlockQuantizedOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        with_info: Literal[True], as_torch: bool = False, **options: Unpack[BlockQuantizedOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def gather_block_quantized(
        self, data: Any, indices: Any, scales: Any, zero_points: Any = None, *,
        as_torch: Literal[True], with_info: Literal[False] = False, **options: Unpack[BlockQuantizedOptions],
    ) -> Any: ...  # fmt: skip
    def gather_block_quantized(
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
        """GatherBlockQuantized: rows of a table of 4-bit or 8-bit values, dequantized as they are gathered.

        `data` is an array of uint8, each item a value, or with `bits` 4 two of them, the low half first. Each
        `block_size` values along its last axis have an element of `scales` (float32, float16 or bfloat16), and one of
        `zero_points`, which are packed as `data` is; without them it is 2^(bits - 1). All three may be a str, the name
        of a resident tensor. Returns (value - zero point) * scale, of the type of `scales`.

        `with_info` returns a Result with the array, `as_torch` PyTorch's tensor in its place.
        """
        parameters = {
            "gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": block_size, "bits": bits,
        }  # fmt: skip
        request = _endpoints.gather_block_quantized(
            data, indices, scales, zero_points, parameters, out_of_bounds, fill_value, output_dtype, with_info, as_torch
        )
        return self._run(request, timeout, headers)

    def lookup(
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
        dtypes = {name: self._dtype(name, until, headers) for name in _lookups.without_weight_type(named)}
        typed = _lookups.with_weight_types(named, dtypes)
        request = _lookups.lookup(typed, concat, out_of_bounds, fill_value, output_dtype, with_info, as_torch)
        return self._run_until(request, until, headers)

    @overload
    def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[ScatterOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def scatternd(
        self, data: Any, indices: Any, updates: Any, *,
        as_torch: Literal[True], with_info: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> Any: ...  # fmt: skip
    def scatternd(
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
        """ScatterND: a copy of `data` with an update for each tuple in the last dimension of `indices`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor, which stays as it is (`scatter`
        changes one). `updates` is of data's type and of shape indices.shape[:-1] + data.shape[indices.shape[-1]:].
        A list of updates takes data's type. Updates count in row-major order: with `reduction` none the last one of a
        place wins, add, mul, min and max take one after the other. Returns an array of data's type and shape.

        dialect is onnx-18, onnx-16 (without min and max), onnx-13 or onnx-11 (none alone). `with_info` returns a Result
        with the array, `as_torch` PyTorch's tensor in its place.
        """
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = _scatters.scatter_into_copy(
            "scatternd", data, indices, updates, None, reduction, dialect, with_info, as_torch
        )
        return self._run_until(request, until, headers)

    @overload
    def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        with_info: Literal[False] = False, as_torch: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[ScatterOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def scatter_elements(
        self, data: Any, indices: Any, updates: Any, axis: int = 0, *,
        as_torch: Literal[True], with_info: Literal[False] = False,
        **options: Unpack[ScatterOptions],
    ) -> Any: ...  # fmt: skip
    def scatter_elements(
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
        """ScatterElements: a copy of `data` with each entry of `updates` at its own place, but for `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor, which stays as it is. `indices` has
        the same rank, and on every axis but `axis` at most data's size; `updates` has the shape of `indices` and data's
        type. For reduction, dialect and the result see `scatternd`.
        """
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = _scatters.scatter_into_copy(
            "scatter_elements", data, indices, updates, axis, reduction, dialect, with_info, as_torch
        )
        return self._run_until(request, until, headers)

    @overload
    def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, sparse: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, sparse: Literal[True], as_torch: bool = False,
        **options: Unpack[BackwardOptions],
    ) -> SparseGradient: ...  # fmt: skip
    @overload
    def gathernd_backward(
        self, indices: Any, grad_output: Any, *, batch_dims: int = 0, as_torch: Literal[True],
        sparse: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> Any: ...  # fmt: skip
    def gathernd_backward(
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
        """The gradient of GatherND: zeros of the data's shape, each slice of `grad_output` added at its index.

        `grad_output` is of a float type and of the shape of the gather's output. `data_shape` is the shape of the
        gather's data, or `tensor` names a resident tensor that has it, and grad_output's type, which a list takes. The
        sum is multiplied by `lda_coeff`. Returns an array of that shape; with `sparse`, for batch_dims 0, a
        SparseGradient of the slices that were gathered alone, which `scatter` takes. `as_torch` returns PyTorch's
        tensors.
        """
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, self._dtype(name, until, headers))
        request = _gradients.backward(
            "gathernd", indices, grad_output, data_shape, tensor, batch_dims, lda_coeff, sparse, dialect, as_torch
        )
        return self._run_until(request, until, headers)

    @overload
    def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, sparse: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, sparse: Literal[True],
        as_torch: bool = False, **options: Unpack[BackwardOptions],
    ) -> SparseGradient: ...  # fmt: skip
    @overload
    def gather_backward(
        self, indices: Any, grad_output: Any, *, axis: int = 0, batch_dims: int = 0, as_torch: Literal[True],
        sparse: Literal[False] = False, **options: Unpack[BackwardOptions],
    ) -> Any: ...  # fmt: skip
    def gather_backward(
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
        """The gradient of Gather: zeros of the data's shape, each slice of `grad_output` added at its index.

        `grad_output` is of a float type and of the shape of the gather's output. `data_shape` is the shape of the
        gather's data, or `tensor` names a resident tensor that has it, and grad_output's type, which a list takes. The
        sum is multiplied by `lda_coeff`. Returns an array of that shape; with `sparse`, for axis 0, a SparseGradient of
        the slices that were gathered alone, which `scatter` takes. The dialect openvino-8 has `batch_dims`, as `gather`
        has it. `as_torch` returns PyTorch's tensors.
        """
        until = call_end(timeout)
        name = resident_name(tensor)
        if name is not None and has_no_type(grad_output):
            grad_output = as_type(grad_output, self._dtype(name, until, headers))
        request = _gradients.backward(
            "gather", indices, grad_output, data_shape, tensor, axis, lda_coeff, sparse, dialect, as_torch, batch_dims
        )
        return self._run_until(request, until, headers)

    def put(
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
        """Make `source` the next version of the resident tensor `name`, whole or not at all.

        `source` is an array; the path of an npy file or of a safetensors file, of which `tensor` names the tensor; or
        an iterator of rows, which are kept in a temporary file until all are there. A file and a memory-mapped array
        are read as they are sent.

        `keys` gives each row its key, by which `gather` and `lookup` find it: integers or strings, one for each row, no
        two the same (KeysNotUnique), or the path of an npy file of them. A safetensors file has them if its tensors are
        `keys` (or `keys.offsets` and `keys.bytes`, for strings) and `data`.

        `if_match` is the ETag that the tensor must have; `if_none_match="*"` asks that there is none of that name
        (PreconditionFailed). `prefault` has the service read the content into memory ahead of requests, `lock` keeps it
        there where the system allows that. `keep` is how many of the newest versions stay, this one among them; without
        it what the service is set to. `note` is said of the version wherever it is described, such as its run, commit
        and author: at most 1 KiB. `replicas` is on how many shards of a cluster each range of rows is to be, from now
        on. `progress` is called with the bytes sent so far; True shows a bar on stderr. Raises ValueError for a file
        that is neither, and for rows that differ in shape or type.
        """
        request = _endpoints.put(
            name, source, keys, tensor, if_match, if_none_match, prefault, lock, keep, note, replicas, progress
        )
        return self._run(request, timeout, headers)

    def put_keys(
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
        """Give the rows of a table that has no keys their keys: its next version, with a copy of the rows.

        `keys`, `keep` and `note` are as `put` has them; `if_match` is the ETag of the version whose rows they name.
        """
        return self._run(_keys.put_keys(name, keys, if_match, keep, note), timeout, headers)

    def get_keys(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> NDArray[Any]:
        """The keys of a table in the order of its rows: int64, uint64, or an array of objects, which are str.

        Raises NoKeys if the table has none.
        """
        return self._run(_keys.get_keys(name, if_match), timeout, headers)

    @overload
    def get(
        self, name: str, *, out: NDArray[Any] | None = None, with_info: Literal[False] = False,
        as_torch: Literal[False] = False, **options: Unpack[GetOptions],
    ) -> NDArray[Any]: ...  # fmt: skip
    @overload
    def get(
        self, name: str, *, out: NDArray[Any] | None = None, with_info: Literal[True], as_torch: bool = False,
        **options: Unpack[GetOptions],
    ) -> Result: ...  # fmt: skip
    @overload
    def get(
        self, name: str, *, out: None = None, with_info: Literal[False] = False, as_torch: Literal[True],
        **options: Unpack[GetOptions],
    ) -> Any: ...  # fmt: skip
    def get(
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
        """The resident tensor `name` (or `NAME@7`, or an alias), or its rows a to b (b not included).

        `rows` is (a, b) or slice(a, b); `client[name][...]` takes negative numbers, steps and open ends, too.
        `if_match` is the ETag that the tensor must have (PreconditionFailed), for rows that belong together. `out` is
        an array of the tensor's type and of the shape that comes, into which it is received and which is returned; when
        the call fails its items are undefined. `with_info` returns a Result with the array, `as_torch` PyTorch's tensor
        in its place. `progress` is called with the bytes received so far; True shows a bar on stderr. Raises
        TensorNotFound, RangeNotSatisfiable, and ValueError for an `out` that does not fit.
        """
        request = _endpoints.get(name, rows, if_match, out, with_info, as_torch, progress)
        return self._run(request, timeout, headers)

    def __getitem__(self, name: str) -> ResidentTensor:
        """The resident tensor `name`, to be indexed as a NumPy array: client["items"][5:7]."""
        return ResidentTensor(self, name)

    def metadata(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Version, type, shape, ETag and times of the resident tensor `name`. Raises TensorNotFound."""
        return self._run(_endpoints.metadata(name), timeout, headers)

    def set_replicas(
        self, name: str, replicas: int, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Say on how many shards of a cluster each range of the table `name` is to be, of all its versions.

        The cluster copies ranges, or drops copies, after the answer. Raises TensorNotFound, and InvalidField for a
        service that is one machine.
        """
        return self._run(_endpoints.set_replicas(name, replicas), timeout, headers)

    def exists(self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None) -> bool:
        """Whether there is a resident tensor `name`."""
        try:
            self.metadata(name, timeout=timeout, headers=headers)
        except TensorNotFound:
            return False
        return True

    def tensors(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[TensorInfo]:
        """Every resident tensor by name, asked for in pages of `page` tensors; `timeout` is for each page."""
        after = None
        while True:
            found = self._run(_endpoints.tensors(after, page), timeout, headers)
            yield from found.tensors
            after = found.next
            if after is None:
                return

    def delete(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remove the resident tensor `name` with all its versions, or with `NAME@7` one of them.

        Raises TensorNotFound, TensorInUse where an alias names it, and PreconditionFailed for another ETag.
        """
        self._run(_endpoints.delete(name, if_match), timeout, headers)

    def alias(self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None) -> Alias:
        """The alias `name`, and the version that it names. Raises TensorNotFound."""
        return self._run(_endpoints.alias(name), timeout, headers)

    def aliases(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[Alias]:
        """Every alias by name, asked for in pages of `page` aliases; `timeout` is for each page."""
        after = None
        while True:
            found = self._run(_endpoints.aliases(after, page), timeout, headers)
            yield from found.aliases
            after = found.next
            if after is None:
                return

    def put_alias(
        self,
        name: str,
        tensor: str,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Alias:
        """Make the alias `name`, or move it, to the version `tensor`, written `NAME@7`: one step for every reader.

        `if_match` is the ETag that the alias itself must have; `if_none_match="*"` asks that there is none
        (PreconditionFailed). Raises TensorNotFound for a version that is not kept, NameConflict for a tensor's name.
        """
        return self._run(_endpoints.put_alias(name, tensor, if_match, if_none_match), timeout, headers)

    def move_aliases(
        self,
        targets: Mapping[str, str],
        *,
        if_match: Mapping[str, str] | None = None,
        if_none_match: Mapping[str, str] | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[Alias]:
        """Make or move all aliases of `targets`, each to a version written `NAME@7`, or none.

        It is one step for every reader: a lookup of several tables reads all of them before it, or all after it.
        `if_match` and `if_none_match` have the conditions of some aliases, as `put_alias` has them. Returns the aliases
        in the order of their names. Raises TensorNotFound, NameConflict and PreconditionFailed, whose `errors` name the
        alias, and ValueError for a condition of an alias that is not to be moved.
        """
        return self._run(_endpoints.move_aliases(targets, if_match, if_none_match), timeout, headers)

    def delete_alias(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remove the alias `name`; the tensor stays. Raises TensorNotFound and PreconditionFailed."""
        self._run(_endpoints.delete_alias(name, if_match), timeout, headers)

    def import_tensor(
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
        """Have the service make the npy or safetensors file at `url` the next version of the tensor `name`, and wait.

        `tensor` names one of the tensors of a safetensors file; `progress` is called with the bytes of items read so
        far, True shows a bar on stderr; the rest is as for `put`. `timeout` is for each request. Raises Forbidden for a
        URL that the operator does not allow, ImportFailed for one that cannot be read, PreconditionFailed. Whoever
        stops waiting does not end the import: see `begin_import` and `end_import`.
        """
        found = self.begin_import(
            name, url, tensor=tensor, if_match=if_match, if_none_match=if_none_match, prefault=prefault, lock=lock,
            keep=keep, note=note, replicas=replicas, timeout=timeout, headers=headers,
        )  # fmt: skip
        return self.wait_for_import(found, progress=progress, timeout=timeout, headers=headers)

    def wait_for_import(
        self,
        begun: ImportInfo,
        *,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Wait until an import that was begun has ended: what it made. Raises its error."""
        found = begun
        tell, pause = _imports.told(found.name, found, progress), _imports.FIRST_PAUSE_S
        while True:
            tell(found.bytes_done)
            made = _imports.outcome(found)
            if made is not None:
                return made
            time.sleep(pause)
            pause = min(1.5 * pause, _imports.LONGEST_PAUSE_S)
            found = self.find_import(found.id, timeout=timeout, headers=headers)

    def begin_import(
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
        """As `import_tensor`, but does not wait: the import goes on in the service, see `find_import`."""
        request = _imports.begin(name, url, tensor, if_match, if_none_match, prefault, lock, keep, note, replicas)
        return self._run(request, timeout, headers)

    def find_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ImportInfo:
        """How far an import is, or how it ended. Raises NotFound for one that the service does not know any more."""
        return self._run(_imports.find(import_id), timeout, headers)

    def imports(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[ImportInfo]:
        """Every import that runs, and those of before, in the order in which they began; asked for in pages."""
        after = None
        while True:
            found = self._run(_imports.page(after, page), timeout, headers)
            yield from found.imports
            after = found.next
            if after is None:
                return

    def end_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """End an import that runs, which takes a second, or have the service forget one that has ended."""
        self._run(_imports.end(import_id), timeout, headers)

    @overload
    def scatter(
        self, name: str, indices: Any, updates: Any, reduction: Reduction = "none", *,
        with_info: Literal[False] = False, **options: Unpack[TableScatterOptions],
    ) -> str: ...  # fmt: skip
    @overload
    def scatter(
        self, name: str, indices: Any, updates: Any, reduction: Reduction = "none", *,
        with_info: Literal[True], **options: Unpack[TableScatterOptions],
    ) -> ScatterInfo: ...  # fmt: skip
    def scatter(
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
        """Change slices of the resident tensor `name` (ScatterND as ONNX 18 has it); returns its new ETag.

        `indices` has shape [..., k], `updates` shape indices.shape[:-1] + tensor.shape[k:] and the tensor's type; a
        list is made one of that type, or ValueError is raised where that would change a value. `reduction` says how an
        update meets the old value. Gathers see all of a scatter or nothing; of a table in row ranges on several
        machines that holds for each range. It is sent with an Idempotency-Key, a new one unless given, under which the
        service carries it out once however often it is sent. `with_info` returns a ScatterInfo with the ETag, the
        number of ranges that changed, and the key. ShardUnavailable, Disconnected and Timeout do not say whether it was
        made: their note has the key to repeat it under.
        """
        until = call_end(timeout)
        if has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = _scatters.scatter_into_table(name, indices, updates, reduction, if_match, idempotency_key)
        info = self._run_until(request, until, headers)
        return info if with_info else info.etag

    def ready(self, wait: float = 0.0) -> bool:
        """Whether the service answers and is ready to gather; asks again for `wait` seconds until it is.

        Raises at once what waiting does not change, such as UntrustedCertificate and Unauthorized.
        """
        end = monotonic() + wait
        while True:
            try:
                self._run(_endpoints.ready(), max(end - monotonic(), 1.0), None, Retries(0))
            except (TransportError, NotReady) as error:
                if not may_become_ready(error):
                    raise
                if monotonic() + READY_PAUSE >= end:
                    return False
                time.sleep(READY_PAUSE)
            else:
                return True

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _dtype(self, name: str, until: float | None, headers: Mapping[str, str] | None) -> str:
        """The element type of a resident tensor, which a list is to take, in a call that must end at `until`."""
        info = self._run_until(_endpoints.metadata(name), until, headers)
        return info.dtype

    def _run(
        self,
        request: Request[T],
        timeout: float | None,
        headers: Mapping[str, str] | None,
        retries: Retries | None = None,
    ) -> T:
        """Send the request, again where `Attempts` says so, and return what its answer holds."""
        return self._run_until(request, call_end(timeout), headers, retries)

    def _run_until(
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
                outcome = self._transport.send(request, until, fields)
            except TransportError as error:
                outcome = error
            pause = attempts.pause_after(outcome)
            if pause is None:
                return attempts.result
            time.sleep(pause)


def call_end(timeout: float | None) -> float | None:
    """When a call that may take `timeout` seconds from now must end, of `time.monotonic`. Raises ValueError."""
    if timeout is None:
        return None
    if not 0 < timeout < 1e9:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return monotonic() + timeout


def _over_httpx(settings: ConnectionSettings, transport: httpx.BaseTransport | None) -> HttpxTransport:
    from ._httpx_transport import HttpxTransport  # noqa: PLC0415  (httpx is slow to import, and seldom needed)

    return HttpxTransport(settings, transport)
