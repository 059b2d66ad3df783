"""The rows of the data plane's routes, by group: path, method, and all that OpenAPI says of the operation."""
