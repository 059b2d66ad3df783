"""The methods of the client: `_async` is written by hand, `make sync-client` writes `_sync` from it.

Code that must differ is in pairs of modules one folder up: the transports, `_async_waiting` and `_sync_waiting`.
"""
