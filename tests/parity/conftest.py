from __future__ import annotations

from tests.http.conftest import client, server, start

__all__ = ["client", "server", "start"]
