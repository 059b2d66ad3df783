"""The rows of the routes, by group: path, who may call, and all that OpenAPI says of the operation of each method."""
