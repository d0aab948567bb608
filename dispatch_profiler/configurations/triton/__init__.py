"""Kernels that Triton compiles, for NVIDIA GPUs."""
