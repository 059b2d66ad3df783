"""Imports: tensors that the service itself reads from a URL, by ranges, into its store."""
