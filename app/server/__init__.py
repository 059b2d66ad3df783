"""HTTP/1.1 over uvicorn, connections, TLS and processes: nothing here knows a tensor."""
