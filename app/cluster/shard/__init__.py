"""The shard's side of a cluster: how a service holds and serves its ranges."""
