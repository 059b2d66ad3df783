"""The exit codes of a service that does not start; 0 is a clean stop."""

from __future__ import annotations

from typing import Final

NOT_AVAILABLE: Final = 1
"""The port is taken, or the store cannot be used."""
WRONG_SETTINGS: Final = 2
"""A setting is wrong, or names a file that is."""
STARTUP_FAILURE: Final = 3
"""The application could not start, or its kernels not be compiled; uvicorn's own code, too."""
