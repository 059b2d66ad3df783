"""Reading and writing the npy files of the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray


def load(path: Path) -> NDArray[Any]:
    """The array of an npy file, mapped into memory. Raises OSError, and ValueError for what is no npy file."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path} holds several arrays; an npy file holds one")
    return found


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that is renamed to `path` at the end; an exception removes it instead."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False) as made:
        temporary = Path(made.name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def storable(array: NDArray[Any]) -> NDArray[Any]:
    """`array` with a dtype of the npy format: strings get a fixed width. Raises TypeError for bfloat16."""
    if array.dtype == object:
        return array.astype(str) if array.size else np.empty(array.shape, "<U1")
    if array.dtype.kind == "V":
        raise TypeError(f"an npy file cannot hold {array.dtype.name}")
    return array
