# `make sync-client` writes this file from _async/scatters.py.
"""The scatters: into a copy, and into a resident tensor; and changes of a table's rows by key."""

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
        """ScatterElements: a copy of `data` with each entry of `updates` at its own place, but for `axis`.

        `data` is an array of rank r >= 1, or a str, the name of a resident tensor, which stays as it is. `indices` has
        the same rank, and on every axis but `axis` at most data's size; `updates` has the shape of `indices` and data's
        type. For reduction, dialect and the result see `scatternd`.
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
        """Change and add rows of the table `name` by key; says its ETag, its rows, and how many keys were new.

        `keys` are integers or strings, as the table's are, in one dimension; `updates` has a row of the table's type
        for each, and a list is made one of that type. `reduction` says how an update meets the old row; a new row
        starts from zeros, and a key that comes several times takes its updates one after the other. Requests see all of
        it or nothing. Conditions and the Idempotency-Key are as `scatter` has them.
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
        """Remove rows of the table `name` by key; says its ETag, its rows, and how many keys were removed and missing.

        The last rows move into the gaps, so that positions change. Requests see all of it or nothing. Conditions and
        the Idempotency-Key are as `scatter` has them.
        """
        make = partial(_scatters.remove, name, if_match, idempotency_key)
        return self._run_by_key(make, name, keys, call_end(timeout), headers)
