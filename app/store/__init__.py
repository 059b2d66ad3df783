"""Resident tensors: uploaded once under a name, kept on the local disk, looked up by every worker without copies."""

from app.store.directory_lock import StoreInUse, StoreRefused
from app.store.layout_migrations import UnknownFormat
from app.store.local_store import LocalStore
from app.store.store_protocol import EmptyStore, Resident, Store
from app.store.tensor_metadata import Conditions, Metadata, Quota

__all__ = [
    "Conditions",
    "EmptyStore",
    "LocalStore",
    "Metadata",
    "Quota",
    "Resident",
    "Store",
    "StoreInUse",
    "StoreRefused",
    "UnknownFormat",
]
