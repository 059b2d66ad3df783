"""HTTP: the ASGI application, its routes and their handlers, and what OpenAPI says of them."""
