from __future__ import annotations

from tests.http.conftest import start

__all__ = ["start"]
