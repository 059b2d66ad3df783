"""uvicorn's flow control of a connection, which also knows since when the service has read what comes."""

from __future__ import annotations

from time import monotonic

from uvicorn.protocols.http.flow_control import FlowControl


class TimedFlowControl(FlowControl):
    """`resumed` is when reading went on after a pause, in seconds of `monotonic`: 0.0 before the first one."""

    resumed = 0.0

    def resume_reading(self) -> None:
        """Read on: what did not come while nothing was read is not the client's slowness."""
        if self.read_paused:
            self.resumed = monotonic()
        super().resume_reading()
