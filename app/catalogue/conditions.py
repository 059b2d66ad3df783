"""Conditions on ETags: a change is made only if the ETag of its target is one that the caller expects."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from app.errors import GatherError


@dataclass(frozen=True, slots=True)
class Conditions:
    """If-Match and If-None-Match. Each holds the ETags in the field, ("*",) for any ETag, or None if the field was not
    sent.

    If the conditions are members of a body, `pointer` is their location; for header fields, it is None.
    """

    match: tuple[str, ...] | None = None
    none_match: tuple[str, ...] | None = None
    pointer: str | None = None

    def check(self, etag: str | None, kind: str = "tensor") -> None:
        """Raise precondition_failed unless the conditions hold for an object with this ETag (None: there is no object).

        `kind` is the noun used for the object in messages.
        """
        match, none_match = ("If-Match", "If-None-Match") if self.pointer is None else ("if_match", "if_none_match")
        if self.match is not None and (etag is None or (etag not in self.match and self.match != ("*",))):
            raise GatherError(
                "precondition_failed",
                f"{match} does not hold: " + (f"the {kind} does not exist" if etag is None else f"the ETag is {etag}"),
                pointer=self.pointer,
                hint=f"Leave out {match}, or {'upload the tensor' if kind == 'tensor' else f'create the {kind}'} first."
                if etag is None
                else f"Read the {kind} again, and send {self._field_for(etag)} if the change still applies.",
            )
        if self.none_match is not None and etag is not None and (etag in self.none_match or self.none_match == ("*",)):
            raise GatherError(
                "precondition_failed",
                f"{none_match} does not hold: the ETag is {etag}",
                pointer=self.pointer,
                hint=f"Send {self._field_for(etag)} in place of {none_match} to "
                f"{'replace' if kind == 'tensor' else 'move'} the {kind}, or use another name.",
            )

    def _field_for(self, etag: str) -> str:
        """Return the header field or member that a caller can use to require this ETag."""
        return f"'If-Match: {etag}'" if self.pointer is None else f'"if_match": {orjson.dumps(etag).decode()}'


ALWAYS = Conditions()
"""Conditions that always hold."""
