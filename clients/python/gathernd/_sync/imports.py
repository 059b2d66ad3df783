# `make sync-client` writes this file from _async/imports.py.
"""Imports, which are tensors that the service reads from a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .. import _imports
from .._answers import TensorInfo
from .._imports import ImportInfo
from .._messages import Progress
from .._sync_waiting import sleep
from .requests import Requests


class Imports(Requests):
    """Imports of tensors from URLs."""

    def import_tensor(
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
        """Import the npy or safetensors file at `url` into the service as the next version of the tensor `name`.

        Waits until the import ends. `tensor` is the name of a tensor in a safetensors file, and `keys` is the name of
        the tensor that holds the keys of its rows. `progress` is called with the number of bytes read so far; True
        shows a progress bar on stderr. The other arguments are as in `put`. `timeout` applies to each request. If you
        stop waiting, the import continues; see `begin_import` and `end_import`.

        Raises Forbidden if the operator does not allow the URL, ImportFailed if the file cannot be read, and
        PreconditionFailed.
        """
        found = self.begin_import(
            name, url, tensor=tensor, keys=keys, if_match=if_match, if_none_match=if_none_match, prefault=prefault,
            lock=lock, keep=keep, note=note, replicas=replicas, timeout=timeout, headers=headers,
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
        """Wait until an import ends. Returns the new version's metadata. Raises the import's error."""
        found = begun
        tell, pause = _imports.progress_reporter(found.name, found, progress), _imports.FIRST_PAUSE_S
        while True:
            tell(found.bytes_done)
            made = _imports.outcome(found)
            if made is not None:
                return made
            sleep(pause)
            pause = min(1.5 * pause, _imports.LONGEST_PAUSE_S)
            found = self.find_import(found.id, timeout=timeout, headers=headers)

    def begin_import(
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
        """Start an import like `import_tensor`, but return immediately. To see its progress, call `find_import`."""
        request = _imports.begin(name, url, tensor, keys, if_match, if_none_match, prefault, lock, keep, note, replicas)
        return self._run(request, timeout, headers)

    def find_import(
        self,
        import_id: str,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ImportInfo:
        """Return the progress or outcome of an import. Raises NotFound if the service no longer has its record."""
        return self._run(_imports.find(import_id), timeout, headers)

    def imports(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[ImportInfo]:
        """Iterate over running and ended imports in the order in which they began, in pages of `page` imports."""
        after = None
        while True:
            found = self._run(_imports.page(after, page), timeout, headers)
            for one in found.imports:
                yield one
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
        """Cancel a running import, which takes about a second, or delete the record of an ended import."""
        self._run(_imports.end(import_id), timeout, headers)
