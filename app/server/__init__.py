"""The HTTP/1.1 server on top of uvicorn: connections, TLS and processes. It is independent of tensors."""
