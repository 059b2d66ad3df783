from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.http.conftest import client, every_client, every_server, server, server_numpy, start
from tests.parity.items import Rng

__all__ = ["client", "every_client", "every_server", "server", "server_numpy", "start"]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Rng:
    """Random numbers of a test's own: others for each of its parameters, the same in each run."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
