"""JSON bodies: tensors read from and written to text without a Python object for each item."""
