"""numpy arrays and torch tensors as operands and results of launches."""
