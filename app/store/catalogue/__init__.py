"""The catalogue in SQLite (names, versions, aliases, content ids, Idempotency-Keys), its in-memory copy, the format."""
