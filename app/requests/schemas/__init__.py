"""The pydantic models that validate everything in requests except arrays. OpenAPI's schemas are derived from them."""
