"""uvicorn's flow control of a connection, which also knows since when the service has read what comes."""

from __future__ import annotations

from time import monotonic

from uvicorn.protocols.http.flow_control import FlowControl


class TimedFlowControl(FlowControl):
    """`resumed` is when reading went on after a pause, in seconds of `monotonic`: 0.0 before the first one. While it
    `holds`, nothing more is read: what came before waits to be parsed.
    """

    resumed = 0.0
    holds = False

    def hold(self) -> None:
        """Read no more until `let_go`."""
        self.holds = True
        self.pause_reading()

    def let_go(self) -> None:
        """Read on after `hold`."""
        if self.holds:
            self.holds = False
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read on: what did not come while nothing was read is not the client's slowness."""
        if self.holds:
            return
        if self.read_paused:
            self.resumed = monotonic()
        super().resume_reading()
