"""Keep the newest catalogue known to a process, and change the catalogue.

A change is a transition: a function that computes the records to write from a catalogue. The change is committed only
if the records it depends on have not changed; otherwise the transition is retried on the newer catalogue. If the
outcome of a commit is unknown, the transition runs again on the next catalogue, which shows the outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import Final, TypeAlias

from app.cluster.catalogue.etcd import Compacted, Database, Written
from app.cluster.catalogue.records import Catalogue, Change, TooLarge, apply_writes, to_json
from app.cluster.catalogue.transitions import unavailable
from app.errors import GatherError

ANSWER_S: Final = 15.0
"""Seconds after which an attempted change is abandoned."""
_PAUSE_S: Final = 0.2
Transition: TypeAlias = Callable[[Catalogue], Change | None]
logger = logging.getLogger("gathernd")


class CatalogueClient:
    """The newest catalogue known to one process. Methods block.

    `take` is called with each newer catalogue, one call at a time, from any thread.
    """

    def __init__(self, database: Database, take: Callable[[Catalogue], object] = lambda _: None) -> None:
        self.database = database
        self.catalogue = Catalogue()
        """The newest known catalogue. Its revision never decreases."""
        self._take = take
        self._lock = Lock()
        self._answers = True
        self._lost = ""
        """Set when etcd has gone back to an older revision. Everything known about the catalogue is then invalid."""

    def refresh(self) -> Catalogue:
        """Read the catalogue as of this call or later.

        Raises OSError. If etcd has gone back to an older revision because it was restored or replaced, this call and
        all later ones raise OSError.
        """
        known = self.catalogue
        revision, written = self.database.read(known)
        if revision < known.revision:
            self._lost = f"etcd went back from revision {known.revision} to {revision}: restart this process"
        if self._lost:
            raise OSError(self._lost)
        return self._use_newer(apply_writes(known, revision, written))

    def transact(self, transition: Transition) -> Catalogue:
        """Commit the change computed by `transition`, and return a catalogue that includes it.

        Nothing is written if `transition` returns None or an empty change. `transition` may be called several times.
        Raises the errors of `transition`, limit_exceeded if the change is too large for one transaction, and
        shard_unavailable if etcd does not respond; in that case, the change may have been made.
        """
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end:
            try:
                catalogue = self.refresh()
                change = transition(catalogue)
                if change is None or not change.puts:
                    return catalogue
                revision = self.database.commit(change, catalogue)
                if revision:
                    return self._with_committed(change, catalogue, revision)
            except TooLarge as error:
                raise GatherError(
                    "limit_exceeded", f"the change is larger than etcd accepts in one transaction: {error}"
                ) from None
            except OSError:
                if self._lost:
                    raise unavailable(self._lost) from None
                time.sleep(_PAUSE_S)
        raise unavailable("etcd does not answer: the outcome of the change is unknown")

    def transact_all(self, transition: Transition) -> Catalogue:
        """Commit the changes computed by `transition` one after another, until it returns None.

        Raises the errors of `transact`.
        """
        has_more = True

        def judged(catalogue: Catalogue) -> Change | None:
            nonlocal has_more
            change = transition(catalogue)
            has_more = change is not None
            return change

        while has_more:
            catalogue = self.transact(judged)
        return catalogue

    def _with_committed(self, change: Change, judged: Catalogue, revision: int) -> Catalogue:
        """Return a catalogue that includes a change committed at `revision`. Raises OSError."""
        if revision > judged.revision + 1:  # other changes were committed in between
            return self.refresh()
        written = {key: None if one is None else (to_json(one), revision) for key, one in change.puts.items()}
        return self._use_newer(apply_writes(judged, revision, written))

    def watch(self, stop: Event) -> None:
        """Follow the catalogue until `stop` is set. Blocks; run it in its own thread."""
        while not stop.is_set():
            try:
                self.refresh()
            except OSError as error:
                self._record_contact(error)
                stop.wait(_PAUSE_S)
                continue
            self._record_contact(None)
            try:
                for revision, written in self.database.watch(self.catalogue.revision, stop):
                    self._merge(revision, written)
            except Compacted:
                continue
            except OSError:
                stop.wait(_PAUSE_S)  # the next read shows whether etcd responds

    def _merge(self, revision: int, written: Written) -> None:
        known = self.catalogue
        if revision > known.revision:
            self._use_newer(apply_writes(known, revision, written))

    def _use_newer(self, found: Catalogue) -> Catalogue:
        """Store a catalogue unless a newer one is known. Return the newer of the two."""
        with self._lock:
            if found.revision > self.catalogue.revision:
                self.catalogue = found
                self._take(found)
            return self.catalogue

    def _record_contact(self, error: OSError | None) -> None:
        if error is not None and self._answers:
            logger.warning("keeping the last catalogue: %s", error)
        elif error is None and not self._answers:
            logger.info("etcd answers again")
        self._answers = error is None
