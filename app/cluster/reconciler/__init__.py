"""The reconciler: it compares the catalogue with what shards hold, and has segments pulled and dropped."""
