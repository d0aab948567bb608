"""Compares the errors of IREE and torch, relative to a float64 reference, and says which of them deviates."""
