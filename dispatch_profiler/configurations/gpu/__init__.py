"""Configurations of the compiler's pipelines for GPUs, and the matrix instructions that they use."""
