"""AsyncClient on event loops: many calls at once, one loop after the other, cancelled calls, and uvloop."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from gathernd import AsyncClient, errors
from gathernd._messages import CHUNK_BYTES
from tests.client.test_hostile_servers import Hostile, always, hostile, waiting
from tests.http.server import Server

__all__ = ["hostile"]
DATA = np.arange(1000.0)
Make = Callable[..., Hostile]


async def many_calls(client: AsyncClient) -> None:
    async def look_up(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for count in (1, 50, 3000):  # 3000: an answer that comes in several reads
            indices = rng.integers(0, 1000, (count, 1))
            assert np.array_equal(await client.gathernd(DATA, indices), DATA[indices[:, 0]])

    await asyncio.gather(*map(look_up, range(16)))


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "over a proxy"])
def test_calls_at_once_get_their_own_answers_on_one_loop_after_the_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    if proxied:  # the service itself takes requests as they are sent to a proxy
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
    client = AsyncClient(server.url)

    async def last() -> None:
        async with client:
            await many_calls(client)
        with pytest.raises(RuntimeError, match="closed"):
            await client.metadata("a")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a loop that has ended cannot close what it leaves
        asyncio.run(many_calls(client))
        asyncio.run(last())
        gc.collect()


def test_a_cancelled_call_ends_at_once_and_its_connection_is_not_used_again(hostile: Make) -> None:
    server = hostile(waiting(600), always)

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.gathernd(DATA, [[1]], timeout=600)
            assert (await client.gathernd(DATA, [[1]])).tolist() == [2.0]

    asyncio.run(run())
    assert server.connections == 2


def test_what_progress_raises_reaches_the_caller(server: Server) -> None:
    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        raise Stop

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            # Longer than a piece of the body: what is sent whole before it is stopped may be stored yet.
            with pytest.raises(Stop):
                await client.put("stopped", np.zeros(2 * CHUNK_BYTES, np.uint8), progress=stop)
            with pytest.raises(errors.TensorNotFound):
                await client.metadata("stopped")

    asyncio.run(run())
