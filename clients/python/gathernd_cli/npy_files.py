"""Read and write npy files for the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from .temporary_files import temporary_file

NPY_MAGIC: Final = b"\x93NUMPY"
ZIP_MAGIC: Final = b"PK\x03\x04"
"""The first bytes of a zip file; an npz file is one."""


def is_safetensors(path: Path) -> bool:
    """Return whether the file looks like safetensors: an 8-byte header size, then a JSON object. Raises OSError."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def load(path: Path) -> NDArray[Any]:
    """Map an npy file into memory and return its array. Raises OSError, or ValueError if it is not an npy file."""
    with path.open("rb") as file:
        magic = file.read(len(NPY_MAGIC))
    if magic.startswith(ZIP_MAGIC):
        raise ValueError(f"{path} holds several arrays, as an npz file; an npy file holds one")
    if magic != NPY_MAGIC:
        raise ValueError(f"{path} is not an npy file; numpy.save(file, array) writes one")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        if "Python objects" in str(error):
            raise ValueError(f"{path} holds Python objects; give the array a type of numbers or strings") from None
        raise ValueError(f"{path}: {error}") from None


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path`.

    At the end, rename it to `path`, or remove it after an exception or signal.
    """
    with temporary_file(dir=path.parent, prefix=f".{path.name}.", suffix=".part") as made:
        made.close()
        temporary = Path(made.name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)


def storable(array: NDArray[Any]) -> NDArray[Any]:
    """Convert `array` to a dtype of the npy format; strings get a fixed width. Raises TypeError for ml_dtypes types."""
    if array.dtype == object:
        return array.astype(str) if array.size else np.empty(array.shape, "<U1")
    if array.dtype.isbuiltin == 2:  # npy would record only the size of its items
        raise TypeError(f"an npy file cannot hold {array.dtype.name}")
    return array


def print_or_save(arrays: Mapping[str, NDArray[Any]], path: Path | None) -> None:
    """Print arrays, or write each to an npy file: the array "" to out.npy, the array "0" to out.0.npy.

    The files get their final names only when all of them are written. Raises OSError, and TypeError for ml_dtypes
    types.
    """
    if path is None:
        for array in arrays.values():
            typer.echo(np.array2string(array, threshold=1000))
        return
    with ExitStack() as files:
        for name, array in arrays.items():
            beside = path.with_name(f"{path.stem}.{name}{path.suffix}") if name else path
            with files.enter_context(replace_atomically(beside)).open("wb") as file:
                np.save(file, storable(array), allow_pickle=False)
