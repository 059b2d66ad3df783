# `make sync-client` writes this file from _async/__init__.py.
"""The methods of the client. `_async` is written by hand; `make sync-client` generates `_sync` from it.

Code that must differ between the two is in pairs of modules one folder up: the transports, and `_sync_waiting` and
`_sync_waiting`.
"""
