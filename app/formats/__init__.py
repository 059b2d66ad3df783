"""The formats, which parse requests from bytes and write answers to bytes. Formats are independent of operators."""
