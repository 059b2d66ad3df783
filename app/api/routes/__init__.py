"""The handlers of the data plane and of the tensors' routes, named after their URLs."""
