"""Tables whose row ranges are spread over several machines: the shard map, the router, and the shards."""
