"""What the tensor and alias routes require from a store: listing, describing and changing what it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from app.catalogue.aliases import AliasMove, find_alias
from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.records import Alias
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import keys_not_implemented
from app.store.store_interface import Store
from app.store.tensor_metadata import Metadata
from app.tensors.keys_spec import KeysSpec


class TensorStore(Store, ABC):
    """A store of tensors, either on the local disk (`app.store.LocalStore`) or in row ranges on other services.

    Methods that change anything block, so call them on a worker thread.
    """

    has_replicas = False
    """Whether tensors are split into row ranges, each stored on several services."""

    @abstractmethod
    def metadata(self, reference: str) -> Metadata:
        """Return the metadata of a version. Raises invalid_field, tensor_not_found and tensor_damaged."""

    @abstractmethod
    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """Return at most `limit` tensors by name, starting after the name `after`.

        Each is described by its current version. The second value is the last returned name if more tensors follow, and
        otherwise None.
        """

    @abstractmethod
    def usage(self) -> tuple[int, int]:
        """Return the number of tensors, and the total size of all their versions in bytes."""

    @abstractmethod
    def version_count(self) -> int:
        """Return the total number of versions of all tensors."""

    @abstractmethod
    def lock_name(self, reference: str) -> str:
        """Return the name of the tensor that a reference belongs to. Changes to the same tensor wait for each other."""

    @abstractmethod
    def etag_to_replace(self, name: str) -> str | None:
        """Return the ETag of the current version that an upload of `name` would replace, or None.

        Raises name_conflict for an alias.
        """

    @abstractmethod
    def upload(self, spec: UploadSpec) -> Upload:
        """Begin an upload; see `Upload`. It counts against the quota from then on.

        Raises invalid_field, name_conflict, limit_exceeded and insufficient_storage.
        """

    def upload_keys(self, name: str, keys: KeysSpec, *, keep: int | None = None, note: str = "") -> Upload:
        """Begin an upload of keys for the rows of the current version. The keys and the rows become the next version.

        The uploaded bytes contain only the keys; `finish` copies the rows. When committing, the caller must require the
        ETag that the tensor had before this call. Raises invalid_field if the version has keys, not_implemented in a
        cluster, and everything that `upload` and `content` raise.
        """
        raise keys_not_implemented(name)

    @abstractmethod
    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Durably publish a finished upload as the next version of its tensor.

        Returns its metadata, and whether the name is new. Keeps the number of newest versions that the upload
        specifies, and all versions that aliases point to. Raises name_conflict, precondition_failed and
        insufficient_storage, and abandons the upload in those cases.
        """

    @abstractmethod
    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        """Durably remove a tensor with all its versions, or a single version. Version numbers are never reused.

        Raises invalid_field, tensor_not_found, name_conflict for an alias, tensor_in_use if an alias points to the
        version, precondition_failed and insufficient_storage.
        """

    def set_replicas(self, name: str, replicas: int) -> Metadata:
        """Set the number of shards that hold each row range of a tensor, and return its metadata.

        Only stores with `has_replicas` support this. Raises tensor_not_found, name_conflict for an alias, and
        shard_unavailable.
        """
        raise NotImplementedError

    def alias(self, alias: str) -> Alias:
        """Return the alias with this name. Raises tensor_not_found."""
        return find_alias(self.record_of(alias), self.alias_names())

    @abstractmethod
    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        """Return at most `limit` aliases by name, starting after the name `after`.

        The second value is the last returned name if more aliases follow, and otherwise None.
        """

    @abstractmethod
    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        """Create or move all of these aliases, or none of them.

        Returns each alias and whether it is new. The aliases' names must differ.

        The change is durable, and readers see it in one step. An alias that already points to its target keeps its
        ETag. Raises invalid_field, name_conflict, precondition_failed, insufficient_storage, and tensor_not_found if a
        target does not exist.
        """

    @abstractmethod
    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        """Durably remove an alias.

        Raises tensor_not_found, name_conflict, precondition_failed and insufficient_storage.
        """
