"""`gathernd.gathernd`, `gather` and `gather_elements`: functions for code that does not create a client.

The environment specifies the service: GATHERND_URL, GATHERND_API_KEY if the service requires a key, and GATHERND_CA.
"""

from __future__ import annotations

import atexit
import os
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from ._connection_settings import CA_VARIABLE, DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from ._sync.client import Client

_clients: dict[tuple[int, str, str | None, str | None], Client] = {}
_lock = Lock()


def default_client() -> Client:
    """Return the client for the current environment. There is one per process, URL, key and GATHERND_CA."""
    url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    key = os.environ.get(KEY_VARIABLE) or None
    # The key includes the process ID, because a forked child must not use its parent's connections.
    client_key = os.getpid(), url, key, os.environ.get(CA_VARIABLE)
    with _lock:
        client = _clients.get(client_key)
        if client is None:
            client = _clients[client_key] = Client(url, key=key)
        return client


def gathernd(data: Any, indices: Any, batch_dims: int = 0) -> NDArray[Any]:
    """Run GatherND on the service at GATHERND_URL (default http://127.0.0.1:8080); see `Client.gathernd`.

    Has the same signature as modeci_mdf's function of this name.
    """
    return default_client().gathernd(data, indices, batch_dims)


def gather(data: Any, indices: Any, axis: int = 0) -> NDArray[Any]:
    """Run Gather on the service at GATHERND_URL (default http://127.0.0.1:8080); see `Client.gather`."""
    return default_client().gather(data, indices, axis)


def gather_elements(data: Any, indices: Any, axis: int = 0) -> NDArray[Any]:
    """Run GatherElements on the service at GATHERND_URL (default http://127.0.0.1:8080); see
    `Client.gather_elements`.
    """
    return default_client().gather_elements(data, indices, axis)


@atexit.register
def _close() -> None:
    process = os.getpid()
    for (owner, *_), client in _clients.items():
        if owner == process:
            client.close()
