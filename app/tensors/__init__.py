"""Typed tensors: the table of dtypes, flat arrays with a shape, and the calls made of them."""
