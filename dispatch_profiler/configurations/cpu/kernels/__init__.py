"""Kernels of vector instructions for CPUs that are written instruction by instruction."""
