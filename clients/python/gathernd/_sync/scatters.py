# `make sync-client` writes this file from _async/scatters.py.
"""Scatters into copies and into resident tensors, and changes of a table's rows by key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Unpack, overload

from numpy.typing import NDArray

from .. import _scatters
from .._answers import Result, RowsChanged, ScatterInfo
from .._arrays_of_others import as_type, has_no_type
from .._call_options import ScatterOptions, TableScatterOptions
from .._endpoints import Reduction
from .._retries import call_end
from .._selection import resident_name
from .._sync_waiting import packed
from .requests import Requests


class Scatters(Requests):
    """Scatters into copies and into resident tensors."""

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
        """ScatterND: return a copy of `data` with an update for each tuple in the last dimension of `indices`.

        `data` is an array of rank r >= 1, or the name (str) of a resident tensor, which is not changed (use `scatter`
        for that). `updates` has data's type and the shape indices.shape[:-1] + data.shape[indices.shape[-1]:]; a list
        is converted to data's type. Updates are applied in row-major order: with `reduction` none, the last update of a
        position wins; add, mul, min and max combine all updates. Returns an array of data's type and shape.

        `dialect` is onnx-18, onnx-16 (without min and max), or onnx-13 or onnx-11 (where `reduction` can only be none).
        `with_info` returns a Result that holds the array; `as_torch` returns a PyTorch tensor.
        """
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = packed(
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
        """ScatterElements: return a copy of `data` with each entry of `updates` written to one position.

        The position is the entry's own position, except that the index replaces the coordinate on `axis`. `data` is an
        array of rank r >= 1, or the name (str) of a resident tensor, which is not changed. `indices` has the same rank
        and, on every axis except `axis`, at most data's size; `updates` has the shape of `indices` and data's type.
        `reduction`, `dialect` and the result are as in `scatternd`.
        """
        until = call_end(timeout)
        name = resident_name(data)
        if name is not None and has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = packed(
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
        return self._run_until(request, until, headers)

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
        """Change slices of the resident tensor `name`, as in ONNX 18's ScatterND. Returns its new ETag.

        `indices` has the shape [..., k]; `updates` has the shape indices.shape[:-1] + tensor.shape[k:] and the tensor's
        type. A list is converted to that type; raises ValueError if that would change a value. `reduction` sets how an
        update is combined with the old value. A scatter is atomic for readers; in a cluster, this holds for each row
        range.

        The request has an Idempotency-Key (default: a new one), so that the service applies a retried request only
        once. `with_info` returns a ScatterInfo with the ETag, the number of ranges that changed, and the key. After
        ShardUnavailable, Disconnected or Timeout, the outcome is unknown; a note on the error contains the key for a
        retry.
        """
        until = call_end(timeout)
        if has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        request = packed(
            (indices, updates),
            _scatters.scatter_into_table,
            name,
            indices,
            updates,
            reduction,
            if_match,
            idempotency_key,
        )
        info = self._run_until(request, until, headers)
        return info if with_info else info.etag

    def upsert(
        self,
        name: str,
        keys: Any,
        updates: Any,
        reduction: Reduction = "none",
        *,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RowsChanged:
        """Change and add rows of the table `name` by key.

        Returns its ETag, the number of rows and the number of new keys. `keys` is a 1-D array of integers or strings,
        like the table's keys. `updates` has one row per key, in the table's type; a list is converted to that type.
        `reduction` sets how an update is combined with the old row. A new row starts from zeros. The updates of a
        repeated key are applied in order. The change is atomic for readers. `if_match` and `idempotency_key` are as in
        `scatter`.
        """
        until = call_end(timeout)
        if has_no_type(updates):
            updates = as_type(updates, self._dtype(name, until, headers))
        make = partial(_scatters.upsert, name, updates, reduction, if_match, idempotency_key)
        return self._run_by_key(make, name, keys, until, headers)

    def remove(
        self,
        name: str,
        keys: Any,
        *,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RowsChanged:
        """Remove rows of the table `name` by key.

        Returns its ETag, and the numbers of rows, of removed keys and of missing keys. The last rows move into the
        gaps, so positions change. The change is atomic for readers. `if_match` and `idempotency_key` are as in
        `scatter`.
        """
        make = partial(_scatters.remove, name, if_match, idempotency_key)
        return self._run_by_key(make, name, keys, call_end(timeout), headers)
