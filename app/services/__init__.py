"""What requests ask for is carried out here: resolve the data, validate, choose a route, run."""
