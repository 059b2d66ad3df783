"""HTTP: the ASGI application, its routes, their handlers, and their OpenAPI description."""
