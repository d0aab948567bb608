"""Configurations for CPUs: the compiler's tiles, and microkernels of our own."""
