"""Compare contents with their checksums in the background; start-up checks only sizes and headers."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from threading import Event

from app.errors import GatherError
from app.store.catalogue.catalogue_cache import CatalogueCache
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import Row
from app.store.files.tensor_file import BadFile
from app.store.maintenance.check_content import UnreadableFile, check_content
from app.store.processes.directory_lock import ProcessGroup, StateWord
from app.store.scatters.log_replay import ReplayedLogs

logger = logging.getLogger("gathernd")


def verify(
    folder: Path,
    group: ProcessGroup,
    catalogue: Catalogue,
    index: CatalogueCache,
    logs: ReplayedLogs,
    stop: Event,
    pause_ratio: float,
) -> None:
    """Verify all contents once, in the first process of the group that tries; see `LocalStore.verify`."""

    def mark_damaged(row: Row, why: str) -> None:
        with group.locks.tensor(row.name):
            if index.find(row.reference) == row:
                with suppress(GatherError), logs.open(row) as writable:
                    logger.error("the content of %s is damaged: %s", row.reference, why)
                    writable.mark_damaged()

    with group.locks.try_verification() as free:
        if not free or group.state[StateWord.VERIFIED]:
            return
        for row in sorted(index.rows(), key=lambda row: (row.name, row.number)):
            with suppress(OSError):
                try:
                    check_content(folder, group.locks, catalogue, row, lambda seconds: stop.wait(seconds * pause_ratio))
                except BadFile as problem:
                    if not isinstance(problem, UnreadableFile):
                        mark_damaged(row, str(problem))
            if stop.is_set():
                return
        group.state[StateWord.VERIFIED] = 1
