"""JSON bodies."""
