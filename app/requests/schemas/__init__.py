"""What requests may say beside their arrays: the pydantic models that validate it and that OpenAPI is made of."""
