"""The formats: bytes to a request, and an answer to bytes. Formats are independent of operators."""
