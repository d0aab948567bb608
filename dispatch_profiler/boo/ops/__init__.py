"""Operators of PyTorch that our kernels compute, and values derived from parameters."""
