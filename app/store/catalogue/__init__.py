"""The catalogue in SQLite (names, versions, aliases, content ids, Idempotency-Keys), its copy in memory, the format."""
