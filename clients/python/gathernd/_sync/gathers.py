# `make sync-client` writes this file from _async/gathers.py.
"""The gathers, and the lookup of many tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack, overload

from numpy.typing import NDArray

from .. import _endpoints, _keys, _lookups
from .._answers import Result
from .._call_options import AxisGatherOptions, BlockQuantizedOptions, GatherOptions
from .._endpoints import OutOfBounds
from .._keys import Missing
from .._lookups import Feature
from .._retries import call_end
from .._selection import resident_name
from .._sync_waiting import packed
from ..errors import UnsupportedDtype
from .requests import Requests


class Gathers(Requests):
    """Gathers of arrays and of resident tensors."""

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
        integer type; under an ONNX dialect narrower integers are sent as int64. Returns an array of data's type with
        the shape indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1]:].

        [5, 3] is one tuple, an item: for rows 5 and 3 call `gather`.

        dialect is onnx-13, onnx-12, onnx-11 or openvino-8; device is auto, cpu or gpu. `with_info` returns a Result
        that holds the array; `as_torch` returns a PyTorch tensor.
        """
        request = packed(
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

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. Returns an array of data's type with
        the shape data.shape[:axis] + indices.shape + data.shape[axis + 1:].

        dialect is onnx-13, onnx-11, onnx-1 or openvino-8. openvino-8 has `batch_dims`, the number of leading dimensions
        that data and indices share; the shape is then data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis
        + 1:]. device is auto, cpu or gpu. `with_info` returns a Result that holds the array; `as_torch` returns a
        PyTorch tensor.

        `keys` name rows of a table with keys, in place of `indices`: integers or strings, like the table's. `missing`
        says what to return for a key that the table lacks: error (KeyNotFound, the default); fill (a row of
        `fill_value`, 0 unless given); or row (the row that `missing_row` names by its position, such as 0, or by its
        key, such as {"key": 7}). A Result counts the `missing`. `found=True` returns a Result with a bool for each key.
        """
        make = partial(
            _keys.gather,
            data,
            indices,
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
        name = None if keys is None else resident_name(data)
        if name is not None:
            return self._run_by_key(make, name, keys, call_end(timeout), headers)
        return self._run(packed((data, indices), make, keys), timeout, headers)

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
        """GatherElements: each entry of `indices` picks an item of `data`, replacing the `axis` coordinate of its
        position.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor. `indices` has the same rank, and at
        most data's size on every axis except `axis`. Returns an array of data's type with the shape of `indices`, like
        NumPy's take_along_axis.

        dialect is onnx-13, onnx-11 or openvino-6; device is auto or cpu. `with_info` returns a Result that holds the
        array; `as_torch` returns a PyTorch tensor.
        """
        request = packed(
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

        `data` is an array of uint8: one value per item, or with `bits` 4 two values, the low half first. Each
        `block_size` values along its last axis share an element of `scales` (float32, float16 or bfloat16) and one of
        `zero_points`, which are packed like `data`; the default zero point is 2^(bits - 1). All three may be a str, the
        name of a resident tensor. Returns (value - zero point) * scale, in the type of `scales`.

        `with_info` returns a Result that holds the array; `as_torch` returns a PyTorch tensor.
        """
        parameters = {
            "gather_axis": gather_axis, "quantize_axis": quantize_axis, "block_size": block_size, "bits": bits,
        }  # fmt: skip
        request = packed(
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
        """Rows of many resident tensors in one request, as single rows or pooled bags.

        Each feature is a `Feature`, or its fields in a tuple or dict: the name of a tensor, indices of rows along its
        first axis, and for bags `offsets` (where each begins) or `lengths`, `pooling` (sum, mean or max) and `weights`.
        It may have `keys` in place of indices, with `missing`, `missing_row` and `found` as in `gather`. For a list of
        weights, the client asks the service for the tensor's type. `features_of` makes features from a
        KeyedJaggedTensor's values and lengths.

        Returns the features' outputs joined on axis 1, which requires equal types and numbers of rows; without
        `concat`, a list with one output per feature. `with_info`, or a feature with `found`, returns a LookupResult;
        `as_torch` returns PyTorch tensors. Sums go in index order in float32 (float64 for float64) and are rounded
        once. Each tensor is read in one content, however many features name it.
        """
        until = call_end(timeout)
        named = _lookups.as_features(features)
        dtypes = {name: self._dtype(name, until, headers) for name in _lookups.without_weight_type(named)}
        typed = _lookups.with_weight_types(named, dtypes)
        make = partial(
            _lookups.lookup,
            concat=concat,
            out_of_bounds=out_of_bounds,
            fill_value=fill_value,
            output_dtype=output_dtype,
            info=with_info,
            as_torch=as_torch,
        )
        try:
            return self._run_until(make(typed), until, headers)
        except UnsupportedDtype:
            listed = _lookups.without_key_type(typed)
            for name, numbers in listed.items():
                for number in numbers:
                    found = self._typed_keys(name, typed[number].keys, until, headers)
                    if found is not None:
                        typed[number] = replace(typed[number], keys=found)
            if not listed or _lookups.without_key_type(typed) == listed:
                raise
        return self._run_until(make(typed), until, headers)
