"""Tables in row ranges on several machines: the map of rows to shards, and the router that reads them."""
