"""A shard of a cluster: the service's part for the ranges that it holds."""
