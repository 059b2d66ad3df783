"""The type of the bytes that formats are read from and written to."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
