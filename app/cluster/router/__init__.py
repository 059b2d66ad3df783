"""The router: a request's rows fetched from the machines that hold them, and uploads streamed to them."""
