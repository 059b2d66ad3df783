"""A machine of a cluster: the service on it, and the ranges that it holds."""
