"""What a gather requires from a store: find a resident tensor by name, and read it consistently during scatters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from app.catalogue.records import NameRecord, Version
from app.keys.key_column import KeyColumn
from app.keys.probe import Search
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor

UNCHANGING: Sequence[int] = (0,)


class TableKeys(Protocol):
    """The keys of a table: one distinct key for each row along axis 0. Threads may share the object."""

    @property
    def dtype(self) -> str:
        """The type of the keys: int64, uint64 or string."""

    @property
    def count(self) -> int:
        """The number of keys. It equals the number of rows."""

    def search(self, wanted: KeyColumn | PackedStrings) -> Search:
        """Return a search for the keys in `wanted`, to be passed to `app.keys.key_index.find`.

        `wanted` must have the type of the table's keys. If it holds strings in frames, it must have one dimension.
        """


class Resident:
    """A resident tensor's content in one state, and the ETag of that state.

    `words[0]` is a seqlock version in shared memory. It is odd while a scatter is changing the content, and every
    change gives it a new value. A reader notes `version` and then reads. The data is valid if `words[0]` still equals
    `version` and is even; otherwise, the reader calls `refreshed()` and reads again. A reader that has retried too
    often reads inside `exclude_writers()`. Entering that context blocks, so it must be done on a worker thread.

    `cold` means that the content is larger than memory, so reads have to wait for the disk. `data_version` is the
    version number within the tensor; scatters do not change it. `keys` are the row keys, or None if the table has none.
    Like all data, the rows found by a key search are valid in this state only.
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
        """Whether everything read since this object was created belongs to the state that `etag` identifies."""
        return self.words[0] == self.version and not self.version & 1

    def refreshed(self) -> Resident:
        """Return the same content in its current state. Raises tensor_damaged."""
        return self

    def exclude_writers(self) -> AbstractContextManager[object]:
        """Return a context in which no scatter changes the content. Entering it blocks; any thread may leave it."""
        return nullcontext()


class Store:
    """What a gather requires from a store. This base class holds no tensors."""

    def get(self, reference: str) -> Resident | None:
        """Return the version that a reference currently refers to (a name, `NAME@7` or an alias), or None.

        Raises tensor_damaged.
        """
        return None

    def get_all(self, references: Sequence[str]) -> list[Resident | None]:
        """Return the versions that the references refer to at one moment; no name changes between the lookups.

        The result contains None for a reference that refers to nothing, and may end with that None. Raises
        tensor_damaged. Stores whose names can change concurrently override this method.
        """
        return [self.get(reference) for reference in references]

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return []

    def alias_names(self) -> list[str]:
        """Return the names of all aliases, sorted."""
        return []

    def record_of(self, name: str) -> NameRecord[Version]:
        """Return everything that a name refers to: either versions or an alias."""
        return NameRecord(name)

    def version_numbers(self, name: str) -> list[int]:
        """Return the numbers of a tensor's versions, or of the version that an alias points to.

        Empty for an unknown name.
        """
        own = self.record_of(name)
        return [one.number for one in own.versions] if own.alias is None else [own.alias.version]

    def resolve(self, reference: str) -> str | None:
        """Return the version that a reference currently refers to, in the form `NAME@7`, or None for nothing."""
        return None

    def dtype_of(self, reference: str) -> str | None:
        """Return the element type of the version that a reference refers to, or None.

        Does not read the version's file.
        """
        return None
