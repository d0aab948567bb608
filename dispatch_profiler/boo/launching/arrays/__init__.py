"""Arrays of numpy and tensors of torch as operands and results of launches."""
