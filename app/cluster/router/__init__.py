"""The router, which fetches a request's rows from the machines that hold them and streams uploads to those machines."""
