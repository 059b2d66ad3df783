"""Resident tensors: uploads, downloads, metadata and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from numpy.typing import NDArray

from .. import _endpoints, _keys
from .._answers import Result, TensorInfo
from .._async_waiting import packed
from .._call_options import GetOptions
from .._messages import Progress
from ..errors import TensorNotFound
from .requests import AsyncRequests


class AsyncTensors(AsyncRequests):
    """Uploads, downloads and metadata of resident tensors."""

    async def put(
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
        """Make `source` the next version of the resident tensor `name`, whole or not at all.

        `source` is an array; the path of an npy file, a safetensors file (`tensor` names its tensor), or a Parquet or
        Arrow file; such a file, open and seekable; or an iterator of rows, which are collected in a temporary file.
        Files and memory-mapped arrays are read while they are sent.

        `keys` gives each row the key by which `gather` and `lookup` find it: integers or strings, one per row, all
        distinct (KeysNotUnique), or the path of an npy file of them. A safetensors file contains them if its tensors
        are `keys` (or `keys.offsets` and `keys.bytes`, for strings) and `data`.

        For a Parquet or Arrow file (Feather, IPC stream), which needs the extra `parquet`, `keys` may be the name of a
        column, and `columns` are those of the rows, by default all others: columns of numbers of one type, or one
        column of lists of one length. The column of keys is read once more than the others.

        `if_match` is the ETag that the tensor must have; `if_none_match="*"` requires that the name is new
        (PreconditionFailed). `prefault` makes the service read the content into memory ahead of requests; `lock` keeps
        it there if the system allows it. `keep` is how many of the newest versions to keep, including this one; by
        default the service's setting. `note` is shown with the version's metadata, such as its run, commit and author:
        at most 1 KiB. `replicas` is on how many shards of a cluster to keep each row range, from now on. `capacity` is
        the number of rows that a table with keys can hold before it grows. `progress` is called with the bytes sent so
        far; True shows a bar on stderr. Raises ValueError for a file of another kind, and for rows that differ in shape
        or type.
        """
        request = await packed(
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
        """Give keys to the rows of a table without keys: its next version, with a copy of the rows.

        `keys`, `keep` and `note` are as in `put`; `if_match` is the ETag of the version whose rows they name.
        """
        source = Path(keys) if isinstance(keys, str) else keys
        request = await packed((source,), _keys.put_keys, name, keys, if_match, keep, note)
        return await self._run(request, timeout, headers)

    async def get_keys(
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
        """The resident tensor `name` (or `NAME@7`, or an alias), or its rows a to b - 1.

        `rows` is (a, b) or slice(a, b); `client[name][...]` also takes negative numbers, steps and open ends.
        `if_match` is the ETag that the tensor must have (PreconditionFailed), for rows that belong together. `out` is
        an array of the tensor's type and of the downloaded shape; it is filled and returned. If the call fails its
        items are undefined. `with_info` returns a Result that holds the array; `as_torch` returns a PyTorch tensor.
        `progress` is called with the bytes received so far; True shows a bar on stderr. Raises TensorNotFound,
        RangeNotSatisfiable, and ValueError for an `out` that does not fit.
        """
        request = _endpoints.get(name, rows, if_match, out, with_info, as_torch, progress)
        return await self._run(request, timeout, headers)

    async def metadata(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Version, type, shape, ETag and times of the resident tensor `name`. Raises TensorNotFound."""
        return await self._run(_endpoints.metadata(name), timeout, headers)

    async def set_replicas(
        self, name: str, replicas: int, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> TensorInfo:
        """Set on how many shards of a cluster each range of the table `name` is kept, for all its versions.

        The cluster makes or drops copies after the answer. Raises TensorNotFound, and InvalidField if the service is a
        single machine.
        """
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
        """Every resident tensor by name, in pages of `page` tensors; `timeout` is for each page."""
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
        """Remove the resident tensor `name` with all its versions, or with `NAME@7` one of them.

        Raises TensorNotFound, TensorInUse if an alias points to it, and PreconditionFailed for another ETag.
        """
        await self._run(_endpoints.delete(name, if_match), timeout, headers)
