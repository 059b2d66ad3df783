"""A reconciler's calls to shards over HTTP: list, pull and drop segments.

Each request carries the name of its shard, so that a different shard at the same address refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from ssl import SSLContext
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import httpx

from app.api.own_header_fields import NODE
from app.cluster.catalogue.records import Catalogue
from app.cluster.reconciler.cluster_view import HeldSegment
from app.cluster.reconciler.plan import Drop, Pull

CONNECT_S: Final = 2.0
REFUSAL_S: Final = 1.0
"""Seconds to wait for a refusal; a running machine refuses a connection within this time."""
LIST_S: Final = 5.0
DROP_S: Final = 5.0
PULL_S: Final = 60.0
SLOWEST: Final = 5 << 20
"""Lowest rate of a pull, in bytes per second. A pull may take PULL_S seconds, plus the time to pull its bytes at this
rate.
"""
UNKNOWN_SIZE: Final = 1 << 34
"""Size in bytes assumed for a pull whose size is unknown."""


class ShardFailed(Exception):
    """A shard failed to do what was requested. `is_over` means that it will not do so later either."""

    def __init__(self, detail: str, *, is_over: bool) -> None:
        super().__init__(detail)
        self.is_over = is_over


class ShardCalls:
    """Connections to shards, over TLS if `tls` is given. Methods may raise ShardFailed."""

    def __init__(self, tls: SSLContext | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self._http = httpx.AsyncClient(
            verify=False if tls is None else tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=1000),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def list(self, catalogue: Catalogue, node: str, fence: int | None = None) -> Mapping[str, HeldSegment]:
        """List the complete segments of a shard.

        If a fencing token is given, the shard refuses orders with a lower one from then on.
        """
        answer = await self._ask("GET", catalogue, node, "", LIST_S, fence)
        try:
            return {one["tensor"]: HeldSegment(one["size"], one["sha256"]) for one in answer.json()["segments"]}
        except (ValueError, KeyError, TypeError) as error:
            raise ShardFailed(f"{node} does not answer with a list of segments: {error}", is_over=True) from None

    async def pull(self, catalogue: Catalogue, pull: Pull, fence: int) -> None:
        """Make a shard pull a segment. Returns once it is complete and durable there."""
        order = replace(pull.order, fence=fence)
        seconds = PULL_S + (order.size or UNKNOWN_SIZE) / SLOWEST
        await self._ask("POST", catalogue, pull.node, pull.tensor, seconds, body=order.to_json())

    async def drop(self, catalogue: Catalogue, drop: Drop, fence: int) -> None:
        """Make a shard drop a segment."""
        await self._ask("DELETE", catalogue, drop.node, drop.tensor, DROP_S, fence)

    async def refuses(self, catalogue: Catalogue, node: str) -> bool:
        """Return whether a shard's address refuses connections, because nothing listens there."""
        host, _, port = catalogue.nodes[node].address.rpartition(":")
        try:
            async with asyncio.timeout(REFUSAL_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    async def _ask(
        self,
        method: str,
        catalogue: Catalogue,
        node: str,
        tensor: str,
        seconds: float,
        fence: int | None = None,
        body: bytes | None = None,
    ) -> httpx.Response:
        address, key = catalogue.nodes[node].address, catalogue.options.key
        headers = {NODE: node}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        query = "" if fence is None else f"?fence={fence}"
        url = f"{self._scheme}://{address}/shard/segments{tensor and '/'}{quote(tensor, safe='')}{query}"
        timeout = httpx.Timeout(seconds, connect=CONNECT_S)
        try:
            answer = await self._http.request(method, url, headers=headers, content=body, timeout=timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ShardFailed(f"{address}: {str(error) or type(error).__name__}", is_over=True) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ShardFailed(f"{address}: {str(error) or type(error).__name__}", is_over=False) from None
        if not answer.is_success:
            is_over = not answer.is_server_error  # after a server error, the request may still be executing
            raise ShardFailed(f"{address}: status {answer.status_code}: {answer.text[:300]}", is_over=is_over)
        return answer


async def list_shards(catalogue: Catalogue, tls: SSLContext | None) -> dict[str, Mapping[str, HeldSegment]]:
    """Return the complete segments of all running shards that respond."""
    async with ShardCalls(tls) as shards:

        async def held(node: str) -> Mapping[str, HeldSegment] | None:
            try:
                return await shards.list(catalogue, node)
            except ShardFailed:
                return None

        nodes = [node for node in catalogue.alive if node in catalogue.nodes]
        found = await asyncio.gather(*map(held, nodes))
    return {node: one for node, one in zip(nodes, found, strict=True) if one is not None}
