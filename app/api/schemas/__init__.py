"""The response models for the OpenAPI file."""
