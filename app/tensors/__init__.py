"""Typed tensors as the service holds them: the dtype table, flat arrays with a shape, and the request made of them."""
