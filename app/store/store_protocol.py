"""What a gather needs of a store: names in, resident tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from app.tensors.tensor import Tensor

UNCHANGING: Sequence[int] = (0,)


class Resident:
    """A resident tensor as it is at this moment: its content and the ETag that names that content.

    `words[0]` is a stamp in shared memory: odd while a scatter changes the content, and never the same again after
    one. A reader notes `stamp`, reads, and believes what it read if `words[0]` still is `stamp` and that is even;
    else it takes `current()` and reads again. Readers that met too many changes read within `hold()`, which keeps
    writers away (it blocks: enter it on a thread). `cold` says that the content is larger than memory, so that reading
    it waits for the disk.
    """

    __slots__ = ("cold", "etag", "stamp", "tensor", "words")

    def __init__(
        self, tensor: Tensor, etag: str, version: int = 0, words: Sequence[int] = UNCHANGING, cold: bool = False
    ) -> None:
        self.tensor = tensor
        self.etag = etag
        self.cold = cold
        self.stamp = version
        self.words = words

    @property
    def is_consistent(self) -> bool:
        """Whether what was read since this was made is one content, the one that `etag` names."""
        return self.words[0] == self.stamp and not self.stamp & 1

    def refreshed(self) -> Resident:
        """The same content with the stamp and ETag of this moment. Raises tensor_damaged."""
        return self

    def exclude_writers(self) -> AbstractContextManager[object]:
        """A context in which no scatter changes the content; entering it blocks, leave it on any thread."""
        return nullcontext()


class Store(Protocol):
    """What a gather needs of a store."""

    def get(self, name: str) -> Resident | None:
        """The tensor of this name, or None. Raises tensor_damaged."""
        ...

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        ...


class EmptyStore:
    """A store without tensors."""

    def get(self, name: str) -> Resident | None:
        """None, whatever the name."""
        return None

    def names(self) -> list[str]:
        """No names."""
        return []
