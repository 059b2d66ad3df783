"""Typed tensors: the table of dtypes, flat arrays with a shape, and the parsed calls that contain them."""
