"""The methods of the client: `_async` is written by hand, `make sync-client` writes `_sync` from it.

What differs for good stands in pairs of modules above: the transports, and `_async_waiting` beside `_sync_waiting`.
"""
