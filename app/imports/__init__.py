"""Imports: tensors that the service reads from a URL, in ranges, into its store."""
