# `make sync-client` writes this file from _async/tensors.py.
"""Resident tensors: uploads, downloads, metadata and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from numpy.typing import NDArray

from .. import _endpoints, _keys
from .._answers import Result, TensorInfo
from .._call_options import GetOptions
from .._messages import Progress
from .._sync_waiting import packed
from ..errors import TensorNotFound
from .requests import Requests


class Tensors(Requests):
    """Uploads, downloads and metadata of resident tensors."""

    def put(
        self,
        name: str,
        source: Any,
        *,
        keys: Any = None,
        columns: Sequence[str] | str | None = None,
        tensor: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        prefault: bool = False,
        lock: bool = False,
        keep: int | None = None,
        note: str | None = None,
        replicas: int | None = None,
        capacity: int | None = None,
        progress: Progress | bool | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TensorInfo:
        """Upload `source` as the next version of the resident tensor `name`. The upload is atomic.

        `source` is an array; the path of an npy, safetensors, Parquet or Arrow file; an open, seekable Parquet or Arrow
        file; or an iterator of rows, which are written to a temporary file first. `tensor` is the name of a tensor in a
        safetensors file. Files and memory-mapped arrays are read while they are being sent.

        `keys` assigns each row a key, by which `gather` and `lookup` find the row. It is an array or list of distinct
        integers or strings, one per row, or the path of an npy file that contains them. A safetensors file contains
        keys if its tensors are `keys` (for strings, `keys.offsets` and `keys.bytes`) and `data`.

        For a Parquet or Arrow file (Feather, IPC stream), which needs the extra `parquet`, `keys` may be the name of a
        column. `columns` are the columns that form the rows (default: all other columns): columns of numbers of one
        type, or a single column of lists of equal length. The key column is read one more time than the others.

        `if_match` is the ETag that the tensor must have; `if_none_match="*"` requires that the name is new. `prefault`
        makes the service load the data into memory before requests need it; `lock` locks the data in memory if the
        system allows it. `keep` is the number of newest versions to retain, including this one (default: the service's
        setting). `note`, for example a run, commit and author, is at most 1 KiB long and is shown in the version's
        metadata. `replicas` is the number of shards of a cluster that hold each row range from now on. `capacity` is
        the number of rows that a table with keys can hold before it grows. `progress` is called with the number of
        bytes sent so far; True shows a progress bar on stderr.

        Raises PreconditionFailed, KeysNotUnique, and ValueError if the file is of another kind or rows differ in shape
        or type.
        """
        request = packed(
            (*(Path(one) if isinstance(one, str) else one for one in (source, keys)),),
            _endpoints.put,
            name,
            source,
            keys,
            columns,
            tensor,
            if_match,
            if_none_match,
            prefault,
            lock,
            keep,
            note,
            replicas,
            capacity,
            progress,
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
        """Add keys to a table without keys. Creates its next version, with a copy of the rows.

        `keys`, `keep` and `note` are as in `put`; `if_match` is the ETag of the version whose rows get the keys.
        """
        source = Path(keys) if isinstance(keys, str) else keys
        request = packed((source,), _keys.put_keys, name, keys, if_match, keep, note)
        return self._run(request, timeout, headers)

    def get_keys(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> NDArray[Any]:
        """Return the keys of a table in row order, as an array of int64, uint64, or objects (str).

        Raises NoKeys if the table has no keys.
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
        """Download the resident tensor `name` (or `NAME@7`, or an alias), or its rows a to b - 1.

        `rows` is (a, b) or slice(a, b); `client[name][...]` also accepts negative positions, steps and open ends.
        `if_match` is the ETag that the tensor must have; use it to read consistent rows in several calls. `out` is an
        array with the tensor's type and the shape of the result; it is filled and returned. If the call fails, its
        contents are undefined. `with_info` returns a Result that holds the array; `as_torch` returns a PyTorch tensor.
        `progress` is called with the number of bytes received so far; True shows a progress bar on stderr.

        Raises TensorNotFound, RangeNotSatisfiable, PreconditionFailed, and ValueError if `out` does not fit.
        """
        request = _endpoints.get(name, rows, if_match, out, with_info, as_torch, progress)
        return self._run(request, timeout, headers)

    def metadata(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Return the version, type, shape, ETag and times of the resident tensor `name`. Raises TensorNotFound."""
        return self._run(_endpoints.metadata(name), timeout, headers)

    def set_replicas(
        self, name: str, replicas: int, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Set the number of shards of a cluster that hold each row range of the table `name`, for all its versions.

        The cluster creates or drops copies after it has responded. Raises TensorNotFound, and InvalidField if the
        service runs on a single machine.
        """
        return self._run(_endpoints.set_replicas(name, replicas), timeout, headers)

    def exists(self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None) -> bool:
        """Return True if there is a resident tensor `name`."""
        try:
            self.metadata(name, timeout=timeout, headers=headers)
        except TensorNotFound:
            return False
        return True

    def tensors(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[TensorInfo]:
        """Iterate over all resident tensors in the order of their names, in pages of `page` tensors.

        `timeout` applies to each page.
        """
        after = None
        while True:
            found = self._run(_endpoints.tensors(after, page), timeout, headers)
            for info in found.tensors:
                yield info
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
        """Remove the resident tensor `name` with all its versions or, for `NAME@7`, only that version.

        Raises TensorNotFound, TensorInUse if an alias points to it, and PreconditionFailed if its ETag is not
        `if_match`.
        """
        self._run(_endpoints.delete(name, if_match), timeout, headers)
