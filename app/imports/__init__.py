"""Imports: read tensors from a URL, in ranges, into the store."""
