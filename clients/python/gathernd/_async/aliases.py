"""Aliases, which are names that point to a version of a resident tensor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from .. import _endpoints
from .._answers import Alias
from .requests import AsyncRequests


class AsyncAliases(AsyncRequests):
    """Aliases of versions of resident tensors."""

    async def alias(
        self, name: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> Alias:
        """Return the alias `name` and the version that it points to. Raises TensorNotFound."""
        return await self._run(_endpoints.alias(name), timeout, headers)

    async def aliases(
        self, *, page: int | None = None, timeout: float | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Alias]:
        """Iterate over all aliases in the order of their names, in pages of `page` aliases.

        `timeout` applies to each page.
        """
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
        """Point the alias `name` at the version `tensor`, such as `NAME@7`. Creates the alias if needed.

        The change is atomic. `if_match` is the ETag that the alias must have; `if_none_match="*"` requires that the
        alias does not exist. Raises PreconditionFailed, TensorNotFound if the version does not exist, and NameConflict
        if a tensor already has this name.
        """
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
        """Create or move all aliases in `targets`, or none of them.

        `targets` maps each alias to a version, such as `NAME@7`. The change is atomic: a lookup in several tables sees
        either all the old versions or all the new ones. `if_match` and `if_none_match` map aliases to conditions, as in
        `put_alias`. Returns the aliases in the order of their names. Raises TensorNotFound, NameConflict and
        PreconditionFailed, whose `errors` say which alias failed. Raises ValueError for a condition on an alias that is
        not in `targets`.
        """
        return await self._run(_endpoints.move_aliases(targets, if_match, if_none_match), timeout, headers)

    async def delete_alias(
        self,
        name: str,
        *,
        if_match: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remove the alias `name`. The tensor is kept. Raises TensorNotFound and PreconditionFailed."""
        await self._run(_endpoints.delete_alias(name, if_match), timeout, headers)
