"""What the routes of tensors and aliases need of a store: to list and describe what it has, and to change it."""

from __future__ import annotations

from typing import Protocol

from app.store.catalogue.catalogue_rows import Alias
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_interface import Store
from app.store.tensor_metadata import ALWAYS, Conditions, Metadata


class TensorStore(Store, Protocol):
    """See `app.store.LocalStore`, which keeps tensors on the local disk."""

    def metadata(self, reference: str) -> Metadata:
        """What is known of a version of a tensor. Raises invalid_field, tensor_not_found and tensor_damaged."""
        ...

    def page(self, limit: int, after: str | None) -> tuple[list[Metadata], str | None]:
        """At most `limit` tensors in the order of their names, those after `after`; the last name if more follow."""
        ...

    def lock_name(self, reference: str) -> str:
        """The name by which changes of what a reference names wait for each other."""
        ...

    def etag_to_replace(self, name: str) -> str | None:
        """The ETag of the current version of a tensor that is to be uploaded; None where there is none."""
        ...

    def upload(self, spec: UploadSpec) -> Upload:
        """An upload under way."""
        ...

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Make a finished upload the next version of its tensor: its metadata, and whether the name is new."""
        ...

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        """Remove a tensor with all its versions, or one version."""
        ...

    def alias(self, alias: str) -> Alias:
        """The alias of this name. Raises tensor_not_found."""
        ...

    def alias_page(self, limit: int, after: str | None) -> tuple[list[Alias], str | None]:
        """At most `limit` aliases in the order of their names, those after `after`; the last name if more follow."""
        ...

    def put_alias(self, alias: str, target: str, conditions: Conditions = ALWAYS) -> tuple[Alias, bool]:
        """Make or move an alias: the alias, and whether it is new."""
        ...

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        """Remove an alias."""
        ...
