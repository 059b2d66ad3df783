from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import slow_but_for
from tests.http import server as native
from tests.http.conftest import KERNELS, client, every_server, server, server_numpy, start
from tests.http.server import Server
from tests.oip import bodies
from tests.parity.counts import SHARES
from tests.parity.items import Rng

__all__ = ["client", "every_server", "server", "server_numpy", "start"]


@pytest.fixture(scope="session", params=slow_but_for(("numba",), KERNELS))
def every_format(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """One connection to a server of each CPU kernel in turn, for the native formats and the inference protocol."""
    running = request.getfixturevalue("server" if request.param == "numba" else "server_numpy")
    assert isinstance(running, Server)

    def check(answer: httpx.Response) -> None:
        if answer.request.url.path.startswith("/v2/"):
            bodies.check_answer(answer)
        else:
            native.check_answer(answer, running.documented)

    hooks: dict[str, list[Any]] = {"response": [check]}
    with httpx.Client(base_url=running.url, trust_env=False, timeout=60, event_hooks=hooks) as made:
        yield made


@pytest.fixture(params=range(SHARES), ids="share{}".format)
def rng(request: pytest.FixtureRequest) -> Rng:
    """Random numbers of a test's own: others for each kernel and each share of the requests, the same in each run."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
