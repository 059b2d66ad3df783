"""Reading and writing the npy files of the commands."""

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
"""What an npz file begins with."""


def is_safetensors(path: Path) -> bool:
    """Whether the file looks like safetensors: the size of a header, then a JSON object. Raises OSError."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def load(path: Path) -> NDArray[Any]:
    """The array of an npy file, mapped into memory. Raises OSError, and ValueError for what is no npy file."""
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
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that is renamed to `path` at the end, or removed by an exception or a signal."""
    with temporary_file(dir=path.parent, prefix=f".{path.name}.", suffix=".part") as made:
        made.close()
        temporary = Path(made.name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)


def storable(array: NDArray[Any]) -> NDArray[Any]:
    """`array` with a dtype of the npy format: strings get a fixed width. Raises TypeError for a type of ml_dtypes."""
    if array.dtype == object:
        return array.astype(str) if array.size else np.empty(array.shape, "<U1")
    if array.dtype.isbuiltin == 2:  # npy would keep no more than the size of its items
        raise TypeError(f"an npy file cannot hold {array.dtype.name}")
    return array


def print_or_save(arrays: Mapping[str, NDArray[Any]], path: Path | None) -> None:
    """Print what a command found, or write each array into a file: the array "" into `path`, others beside it.

    The array "0" for out.npy is written into out.0.npy. All are written before the first has its name. Raises OSError,
    and TypeError for a type of ml_dtypes.
    """
    if path is None:
        for array in arrays.values():
            typer.echo(np.array2string(array, threshold=1000))
        return
    with ExitStack() as files:
        for name, array in arrays.items():
            beside = path.with_name(f"{path.stem}.{name}{path.suffix}") if name else path
            with files.enter_context(replacing(beside)).open("wb") as file:
                np.save(file, storable(array), allow_pickle=False)
