"""Validates the document and arrays of a request, in any format, and builds its call."""
