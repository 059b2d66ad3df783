"""Run the calls that requests ask for: resolve the data, validate, choose a route, run."""
