"""Reading the catalogue of a store that a service may have open or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from app.store.catalogue.catalogue import LOCK_TIMEOUT_S, contents_of, database_uri, row_in
from app.store.catalogue.catalogue_rows import CatalogueContents, Row
from app.store.catalogue.sqlite_errors import disk_errors

Result = TypeVar("Result")


class CatalogueReader:
    """Reads the database at `path`. All methods block and raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def contents(self) -> CatalogueContents:
        """All that there is, but for Idempotency-Keys and records of imports."""
        with disk_errors(self._path):
            return read_database(self._path, contents_of)

    def row(self, name: str, version: int) -> Row | None:
        """A version of a tensor, None if there is none."""
        with disk_errors(self._path):
            return read_database(self._path, lambda connection: row_in(connection, name, version))


def read_database(path: Path, read: Callable[[sqlite3.Connection], Result]) -> Result:
    """What `read` finds in the database at `path`. Raises sqlite3.Error."""
    uri = database_uri(path)
    with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S, isolation_level=None)) as connection:
        return read(connection)
