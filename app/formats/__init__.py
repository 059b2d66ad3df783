"""The formats: bytes to a request and an answer to bytes. A format knows no operator."""
