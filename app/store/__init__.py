"""Resident tensors: clients upload them by name, and all workers read them from local disk through shared mappings."""

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
