"""Rules for kernels that Triton compiles, on NVIDIA GPUs."""
