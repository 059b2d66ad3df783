"""The exit codes of a service that does not start; 0 is a clean stop."""

from __future__ import annotations

from typing import Final

NOT_AVAILABLE: Final = 1
"""The address or the store is not available."""
WRONG_SETTINGS: Final = 2
"""A setting is wrong, or a file named by a setting."""
STARTUP_FAILURE: Final = 3
"""The application, its kernels or its workers could not be made ready; uvicorn's code for this, too."""
