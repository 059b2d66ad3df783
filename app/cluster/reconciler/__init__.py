"""The reconciler, which compares the catalogue with the shards' segments and tells shards what to pull and drop."""
