"""What can go wrong with a source: for good, or for this time."""

from __future__ import annotations

from app.errors import GatherError


class SourceFailed(Exception):
    """The source cannot be imported; the text says why, without queries of URLs, credentials or addresses."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint

    def as_error(self, shown: str) -> GatherError:
        """The error import_failed; `shown` is the URL without its query."""
        return import_failed(shown, self.why, self.hint)


class Interrupted(Exception):
    """The source did not answer, or not to the end: it may when it is asked again, after `retry_after` seconds."""

    def __init__(self, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after = retry_after


def import_failed(shown: str, why: str, hint: str | None = None) -> GatherError:
    """import_failed for the source at a URL without its query."""
    return GatherError("import_failed", f"{shown} could not be imported: {why}", pointer="/url", hint=hint)


CHANGED = "it was changed meanwhile"
