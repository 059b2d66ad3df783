"""Run the calls that clients request: resolve the data, validate the call, choose a route, and run it."""
