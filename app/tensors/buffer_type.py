"""The type of buffers that formats read from and write to."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
