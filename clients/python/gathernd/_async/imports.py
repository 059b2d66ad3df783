"""Imports: tensors that the service itself reads from a URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from .. import _imports
from .._answers import TensorInfo
from .._async_waiting import sleep
from .._imports import ImportInfo
from .._messages import Progress
from .requests import AsyncRequests


class AsyncImports(AsyncRequests):
    """Imports of tensors from URLs."""

    async def import_tensor(
        self,
        name: str,
        url: str,
        *,
        tensor: str | None = None,
        keys: str | None = None,
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

        `tensor` names one of the tensors of a safetensors file, `keys` the one with the keys of its rows; `progress` is
        called with the bytes of items read so far, True shows a bar on stderr; the rest is as for `put`. `timeout` is
        for each request. Raises Forbidden for a URL that the operator does not allow, ImportFailed for one that cannot
        be read, PreconditionFailed. Whoever stops waiting does not end the import: see `begin_import` and `end_import`.
        """
        found = await self.begin_import(
            name, url, tensor=tensor, keys=keys, if_match=if_match, if_none_match=if_none_match, prefault=prefault,
            lock=lock, keep=keep, note=note, replicas=replicas, timeout=timeout, headers=headers,
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
        """Wait until an import that was begun has ended: what it made. Raises its error."""
        found = begun
        tell, pause = _imports.told(found.name, found, progress), _imports.FIRST_PAUSE_S
        while True:
            tell(found.bytes_done)
            made = _imports.outcome(found)
            if made is not None:
                return made
            await sleep(pause)
            pause = min(1.5 * pause, _imports.LONGEST_PAUSE_S)
            found = await self.find_import(found.id, timeout=timeout, headers=headers)

    async def begin_import(
        self,
        name: str,
        url: str,
        *,
        tensor: str | None = None,
        keys: str | None = None,
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
        request = _imports.begin(name, url, tensor, keys, if_match, if_none_match, prefault, lock, keep, note, replicas)
        return await self._run(request, timeout, headers)

    async def find_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ImportInfo:
        """Progress of an import, or how it ended. Raises NotFound for one that the service does not know any more."""
        return await self._run(_imports.find(import_id), timeout, headers)

    async def imports(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[ImportInfo]:
        """Every import that runs, and those of before, in the order in which they began; asked for in pages."""
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
        """End an import that runs, which takes a second, or have the service forget one that has ended."""
        await self._run(_imports.end(import_id), timeout, headers)
