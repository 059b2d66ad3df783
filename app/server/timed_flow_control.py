"""uvicorn's flow control of a connection, which also knows since when the service has read what comes."""

from __future__ import annotations

from time import monotonic

from uvicorn.protocols.http.flow_control import FlowControl


class TimedFlowControl(FlowControl):
    """`resumed` is when reading went on after a pause, in seconds of `monotonic`: 0.0 before the first one.

    Nothing is read while it `holds`, since what came before waits to be parsed, or is `paused`, since what was parsed
    waits for the application.
    """

    resumed = 0.0
    holds = False
    paused = False

    def hold(self) -> None:
        """Read no more until `let_go`."""
        self.holds = True
        super().pause_reading()

    def let_go(self) -> None:
        """End what `hold` began; read on unless reading is paused, too."""
        self.holds = False
        self._read_on()

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""
        self.paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """End what `pause_reading` began; read on unless input waits to be parsed."""
        self.paused = False
        self._read_on()

    def _read_on(self) -> None:
        if self.holds or self.paused:
            return
        if self.read_paused:
            self.resumed = monotonic()  # what did not come while nothing was read is not the client's slowness
        super().resume_reading()
