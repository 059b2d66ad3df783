"""Exit codes of a service that fails to start. 0 means a clean shutdown."""

from __future__ import annotations

from typing import Final

NOT_AVAILABLE: Final = 1
"""The address or the store is not available."""
WRONG_SETTINGS: Final = 2
"""A setting, or a file specified by a setting, is invalid."""
STARTUP_FAILURE: Final = 3
"""The application, its kernels or its workers could not be prepared. uvicorn uses the same code for this."""
