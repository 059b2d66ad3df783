"""What a gather needs of a store: a resident tensor by its name, and how to read it while scatters change it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.catalogue.records import NameRecord, Version
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

UNCHANGING: Sequence[int] = (0,)


class TableKeys(Protocol):
    """The keys of a table: one distinct key for each row of axis 0. Threads may share it."""

    @property
    def dtype(self) -> str:
        """The type of the keys: int64, uint64 or string."""

    @property
    def count(self) -> int:
        """How many keys there are, which is the number of rows."""

    def find(self, wanted: NDArray[np.int64] | NDArray[np.uint64] | PackedStrings, out: NDArray[np.int64]) -> None:
        """Write the row of each wanted key to `out`, -1 for a key that is missing. Both are of one dimension.

        `wanted` has the type of the keys. Releases the interpreter lock; threads may each find a part.
        """


class Resident:
    """A resident tensor at one version: its content, and the ETag that names the content at that version.

    `words[0]` is a seqlock's version in shared memory: odd while a scatter changes the content, and never the same
    again after one. A reader notes `version`, reads, and may use what it read if `words[0]` still equals `version` and
    is even; else it takes `refreshed()` and reads again. Readers that met too many changes read within
    `exclude_writers()`, which blocks: enter it on a thread. `cold` says that the content is larger than memory, so that
    reading it waits for the disk. `data_version` is the number of the tensor's version that the content is, which
    scatters do not change. `keys` are the keys of its rows, None if the table has none; rows that they give belong to
    this version, as what is read does.
    """

    __slots__ = ("cold", "data_version", "etag", "keys", "tensor", "version", "words")

    def __init__(
        self,
        tensor: Tensor,
        etag: str,
        version: int = 0,
        words: Sequence[int] = UNCHANGING,
        cold: bool = False,
        data_version: int = 1,
        keys: TableKeys | None = None,
    ) -> None:
        self.tensor = tensor
        self.etag = etag
        self.cold = cold
        self.version = version
        self.words = words
        self.data_version = data_version
        self.keys = keys

    @property
    def is_consistent(self) -> bool:
        """Whether everything read since this was made is of one version, the one that `etag` names."""
        return self.words[0] == self.version and not self.version & 1

    def refreshed(self) -> Resident:
        """The same content at its present version. Raises tensor_damaged."""
        return self

    def exclude_writers(self) -> AbstractContextManager[object]:
        """A context in which no scatter changes the content; entering it blocks, leave it on any thread."""
        return nullcontext()


class Store:
    """What a gather needs of a store. This one has no tensors."""

    def get(self, reference: str) -> Resident | None:
        """The version of a tensor that a reference names (a name, `NAME@7` or an alias), as it is now, or None.

        Raises tensor_damaged.
        """
        return None

    def get_all(self, references: Sequence[str]) -> list[Resident | None]:
        """The versions that references name in one state of the store: no change of names comes between two of them.

        None for a reference that names nothing; what comes after it may be left out. Raises tensor_damaged.
        A store whose names may change meanwhile overrides this.
        """
        return [self.get(reference) for reference in references]

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return []

    def alias_names(self) -> list[str]:
        """The names of all aliases, sorted."""
        return []

    def record_of(self, name: str) -> NameRecord[Version]:
        """All that a name stands for: versions, or an alias."""
        return NameRecord(name)

    def version_numbers(self, name: str) -> list[int]:
        """The numbers of the versions of a tensor that are kept, or of the one that an alias names; else none."""
        own = self.record_of(name)
        return [one.number for one in own.versions] if own.alias is None else [own.alias.version]

    def resolve(self, reference: str) -> str | None:
        """The version that a reference names now, written `NAME@7`; None if there is none."""
        return None

    def dtype_of(self, reference: str) -> str | None:
        """The element type of the version that a reference names, without a look at its file; None if there is none."""
        return None
