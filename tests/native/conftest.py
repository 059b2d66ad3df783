"""A server of its own for the tests of the native binary format."""

from __future__ import annotations

from tests.http.conftest import client, server, start

__all__ = ["client", "server", "start"]
