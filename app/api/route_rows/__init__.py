"""The rows of the routes, by group: path, access, and the OpenAPI texts of each operation."""
