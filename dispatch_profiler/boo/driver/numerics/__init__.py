"""Compares the errors of IREE and torch relative to a float64 reference, and reports which of the two deviates."""
