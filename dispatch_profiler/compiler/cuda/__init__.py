"""Kernels for NVIDIA GPUs: Triton's as external kernels, and the programs that launch kernels of IREE."""
