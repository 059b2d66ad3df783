"""Access to a store's folder from a process that does not serve it, for backups and checks.

A service may be running, starting or ending on the folder at the same time, so nothing here claims the folder or joins
the group. Any work that could conflict with a change by the service is done while holding the locks of tensors or of
the catalogue, which any process can take.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from app.store.catalogue.catalogue_database import FILE, Catalogue
from app.store.catalogue.store_format import check_format
from app.store.files import download_snapshots
from app.store.files.file_system_check import check_layout, check_processor
from app.store.processes.directory_lock import StoreRefused, session_in
from app.store.processes.store_locks import StoreLocks
from app.store.scatters.log_replay import ReplayedLogs


class UnclaimedStore:
    """The store in `folder`. All methods block."""

    def __init__(self, folder: Path) -> None:
        """Open the store.

        Raises OSError, and StoreRefused if the folder has no store of this format or belongs to another user.
        """
        check_format(folder)
        check_owner(folder)
        check_layout(folder)
        check_processor(2)
        self.folder = folder
        self.tensor_folder = folder / "tensors"
        self.log_folder = folder / "logs"
        self.upload_folder = folder / "incoming"
        self.snapshot_folder = folder / download_snapshots.FOLDER
        self.catalogue = Catalogue(folder / FILE)
        self.locks = StoreLocks(folder / "locks")
        self.locks.make_files()
        self.logs = ReplayedLogs(self.tensor_folder, self.log_folder, partial(session_in, folder))

    def close(self) -> None:
        """Close the catalogue."""
        self.catalogue.close()


def check_owner(folder: Path) -> None:
    """Raise StoreRefused if another user owns the store: the service could not open files created by this process."""
    owner = (folder / "format").stat().st_uid
    if owner != os.geteuid():
        raise StoreRefused(f"{folder} belongs to user {owner}: run the command as that user, who also runs the service")
