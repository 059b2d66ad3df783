"""The catalogue in SQLite (names, versions, aliases, content IDs, Idempotency-Keys), its cache, and the store's
format.
"""
