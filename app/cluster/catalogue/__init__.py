"""The catalogue of a cluster: its tables, the shards assigned to them, and the changes of both."""
