"""The catalogue of a cluster: what tables there are, which shards are to have which rows, and how that changes."""
