"""A server of its own for the tests of the Python client."""

from __future__ import annotations

from tests.http.conftest import client, server, start, warmed

__all__ = ["client", "server", "start", "warmed"]
