"""The coordinator: the map of shards, which machine holds what, publishing and moving; its messages and records."""
