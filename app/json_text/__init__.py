"""JSON bodies: reads and writes tensors as text, without a Python object for each item."""
