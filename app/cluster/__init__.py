"""Tables in row ranges on several machines: which shard has which rows, and the router that asks them."""
