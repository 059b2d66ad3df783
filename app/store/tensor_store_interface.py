"""What the routes of tensors and aliases need of a store: to list and describe what it has, and to change it."""

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
    """Tensors on the local disk (`app.store.LocalStore`), or in row ranges on other services.

    Methods that change something block, and belong on a thread.
    """

    has_replicas = False
    """Whether tensors are in row ranges, each on several services."""

    @abstractmethod
    def metadata(self, reference: str) -> Metadata:
        """What is known of a version of a tensor. Raises invalid_field, tensor_not_found and tensor_damaged."""

    @abstractmethod
    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow.

        Each is there with its current version.
        """

    @abstractmethod
    def usage(self) -> tuple[int, int]:
        """How many tensors there are, and the bytes of all their versions."""

    @abstractmethod
    def version_count(self) -> int:
        """How many versions all tensors have together."""

    @abstractmethod
    def lock_name(self, reference: str) -> str:
        """The name by which changes of what a reference names wait for each other: that of its tensor."""

    @abstractmethod
    def etag_to_replace(self, name: str) -> str | None:
        """The ETag of the current version of a tensor that is to be uploaded; None if there is none.

        Raises name_conflict for an alias.
        """

    @abstractmethod
    def upload(self, spec: UploadSpec) -> Upload:
        """An upload under way, which the quota counts from now on; see `Upload`.

        Raises invalid_field, name_conflict, limit_exceeded and insufficient_storage.
        """

    def upload_keys(self, name: str, keys: KeysSpec, *, keep: int | None = None, note: str = "") -> Upload:
        """An upload of the keys of the current version, as its next version: the bytes are the keys alone.

        `finish` copies the rows. Whoever commits it asks for the ETag that the tensor had before this. Raises
        invalid_field if the version has keys, not_implemented in a cluster, and what `upload` and `content` raise.
        """
        raise keys_not_implemented(name)

    @abstractmethod
    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Make a finished upload the next version of its tensor, durably: its metadata, and whether the name is new.

        The newest versions stay, as many as the upload keeps, and those that aliases name. Raises name_conflict,
        precondition_failed and insufficient_storage, and abandons the upload then.
        """

    @abstractmethod
    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        """Remove a tensor with all its versions, or one version, durably. The numbers are not given again.

        Raises invalid_field, tensor_not_found, name_conflict for an alias, tensor_in_use where an alias names it,
        precondition_failed and insufficient_storage.
        """

    def set_replicas(self, name: str, replicas: int) -> Metadata:
        """Say on how many shards each range of a tensor is to be: its metadata. Only if there are replicas.

        Raises tensor_not_found, name_conflict for an alias, and shard_unavailable.
        """
        raise NotImplementedError

    def alias(self, alias: str) -> Alias:
        """The alias of this name. Raises tensor_not_found."""
        return find_alias(self.record_of(alias), self.alias_names())

    @abstractmethod
    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        """At most `limit` aliases in the order of their names, those after `after`; the last name if more follow."""

    @abstractmethod
    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        """Make or move aliases, all of them or none; no two have one name. Returns each, and whether it is new.

        Durable, and one step for every reader; an alias keeps its ETag where it names that version already. Raises
        invalid_field, name_conflict, precondition_failed, insufficient_storage, and tensor_not_found for a target.
        """

    @abstractmethod
    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        """Remove an alias, durably.

        Raises tensor_not_found, name_conflict, precondition_failed and insufficient_storage.
        """
