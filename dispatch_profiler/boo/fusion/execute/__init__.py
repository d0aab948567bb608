"""Calls of runs: operands made of tensors, launches, and what torch computes where a kernel cannot be used."""
