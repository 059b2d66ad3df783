"""Track whether the service is ready and what it is still waiting for."""

from __future__ import annotations

from app.errors import GatherError


class Readiness:
    """Readiness of the service. `waiting_for` lists what must happen before the first gather.

    `draining` is set once a shutdown has begun. A draining service is not ready but still responds, so that load
    balancers can first stop sending requests to it.
    """

    def __init__(self, *waiting_for: str) -> None:
        self.waiting_for: list[str] = list(waiting_for)
        self.failed: str | None = None
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here."""
        return not self.waiting_for and not self.draining

    def check(self) -> None:
        """Raise not_ready unless the service is ready."""
        if not self.ready:
            raise self.error()

    def mark_done(self, name: str) -> None:
        """Record that the service is no longer waiting for `name`."""
        self.waiting_for.remove(name)

    def error(self) -> GatherError:
        """Return the error for a service that is not ready."""
        if self.draining:
            detail = "the service is stopping"
        elif self.failed:
            detail = f"the service could not start: {self.failed}"
        else:
            detail = f"the service is still starting and is waiting for: {', '.join(self.waiting_for)}"
        return GatherError("not_ready", detail, retry_after=1)
