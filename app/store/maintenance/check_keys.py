"""Finding damage in the keys of a version and in their index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.store.catalogue.catalogue_rows import Row
from app.store.files.key_files import ROWS_AT_ONCE, describe_keys, map_keys
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import BadFile, is_sound

_BLOCKS_PER_STEP: Final = 16


def check_keys(folder: Path, row: Row) -> Iterator[None]:
    """Compare the key file with its checksums, and look each key up in the index, step by step.

    `folder` is that of the tensors. Raises BadFile and OSError. Both files never change.
    """
    if row.keys is None:
        return
    fd = open_regular(folder / row.key_file)
    try:
        description = describe_keys(fd, row)
        for block in range(description.block_count):
            if not is_sound(fd, description, block):
                raise BadFile(f"block {block} of its keys does not match its checksum")
            if block % _BLOCKS_PER_STEP == 0:
                yield
    finally:
        os.close(fd)
    keys = map_keys(folder, row)
    assert keys is not None
    for start in range(0, keys.count, ROWS_AT_ONCE):
        lost = keys.first_lost(start, min(start + ROWS_AT_ONCE, keys.count))
        if lost >= 0:
            raise BadFile(f"the index of its keys does not lead to row {lost}")
        yield
