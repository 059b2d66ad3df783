"""HTTP/1.1 over uvicorn, connections, TLS and processes; independent of tensors."""
