"""Validates a request's document and arrays, in any format, and builds its call."""
