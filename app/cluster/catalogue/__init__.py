"""The catalogue of a cluster: its tables, the shards assigned to them, and changes to both."""
