"""Resident tensors: uploaded once under a name, kept on the local disk, looked up by every worker without copies."""

from app.store.base import EmptyStore, Resident, Store
from app.store.formats import UnknownFormat
from app.store.group import StoreInUse, StoreRefused
from app.store.local import LocalStore
from app.store.model import Conditions, Metadata, Quota

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
