"""Resident tensors: uploaded once under a name, kept on local disk, and read by all workers through shared mappings."""

from app.catalogue.conditions import Conditions
from app.store.local_store import LocalStore
from app.store.processes.directory_lock import StoreInUse, StoreRefused
from app.store.publish_and_remove_versions import Quota
from app.store.store_interface import Resident, Store, TableKeys
from app.store.tensor_metadata import Metadata

__all__ = [
    "Conditions",
    "LocalStore",
    "Metadata",
    "Quota",
    "Resident",
    "Store",
    "StoreInUse",
    "StoreRefused",
    "TableKeys",
]
