"""Configurations for CPUs: the compiler's tiles, and microkernels that the generator writes."""
