# `make sync-client` writes this file from _async/gathers.py.
"""The gathers, and lookups in many tables."""

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
        """GatherND: each tuple in the last dimension of `indices` selects an element or slice of `data`.

        `data` is an array of rank r >= 1, or the name (str) of a resident tensor. `indices` has rank q >= 1 and integer
        type; in ONNX dialects, narrower integers are sent as int64. Returns an array of data's type with the shape
        indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1]:].

        The indices [5, 3] are one tuple and select one item. To gather rows 5 and 3, call `gather`.

        `dialect` is onnx-13, onnx-12, onnx-11 or openvino-8; `device` is auto, cpu or gpu. `with_info` returns a Result
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
        """Gather: each entry of `indices` selects a slice of `data` along `axis`.

        `data` is an array of rank r >= 1, or the name (str) of a resident tensor. `indices` may have any rank. Returns
        an array of data's type with the shape data.shape[:axis] + indices.shape + data.shape[axis + 1:].

        `dialect` is onnx-13, onnx-11, onnx-1 or openvino-8. In openvino-8, `batch_dims` is the number of leading
        dimensions that data and indices share; the shape is then data.shape[:axis] + indices.shape[batch_dims:] +
        data.shape[axis + 1:]. `device` is auto, cpu or gpu. `with_info` returns a Result that holds the array;
        `as_torch` returns a PyTorch tensor.

        For a table with keys, `keys` can replace `indices`: integers or strings, like the table's keys. `missing` sets
        the result for a key that the table does not have: error (raises KeyNotFound, the default), fill (a row of
        `fill_value`, default 0), or row (the row that `missing_row` specifies by position, such as 0, or by key, such
        as {"key": 7}). `missing` in a Result counts such keys. With `found=True`, returns a Result with one bool per
        key.
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
        """GatherElements: each entry of `indices` selects one item of `data`.

        The item's position is the entry's own position, except that the entry replaces the coordinate on `axis`, as in
        NumPy's take_along_axis. `data` is an array of rank r >= 1, or the name (str) of a resident tensor. `indices`
        has the same rank and, on every axis except `axis`, at most data's size. Returns an array of data's type with
        the shape of `indices`.

        `dialect` is onnx-13, onnx-11 or openvino-6; `device` is auto or cpu. `with_info` returns a Result that holds
        the array; `as_torch` returns a PyTorch tensor.
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
        """GatherBlockQuantized: gather rows of a table of 4-bit or 8-bit values and dequantize them.

        `data` is a uint8 array with one value per item or, with `bits` 4, two values per item, low half first. Each
        block of `block_size` values along the last axis shares one element of `scales` (float32, float16 or bfloat16)
        and one element of `zero_points`, which are packed like `data`; the default zero point is 2^(bits - 1). Each of
        the three may be the name (str) of a resident tensor. Returns (value - zero point) * scale, in the type of
        `scales`.

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
        """Look up rows of many resident tensors in one request, as single rows or pooled bags.

        Each feature is a `Feature`, or its fields in a tuple or dict: the name of a tensor, indices of rows along its
        first axis, and for bags `offsets` (the start of each bag) or `lengths`, `pooling` (sum, mean or max) and
        `weights`. `keys` can replace the indices, with `missing`, `missing_row` and `found` as in `gather`. If the
        weights are a list, the client first requests the tensor's type from the service. `features_of` converts the
        values and lengths of a KeyedJaggedTensor to features.

        Returns the outputs concatenated on axis 1, which requires equal types and equal numbers of rows. If `concat` is
        false, returns a list with one output per feature. With `with_info`, or if a feature has `found`, returns a
        LookupResult; `as_torch` returns PyTorch tensors. Sums are computed in index order in float32 (float64 for
        float64) and rounded once. All features of one tensor read the same version of its data.
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
