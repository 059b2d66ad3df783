"""The models of answers for the OpenAPI file."""
