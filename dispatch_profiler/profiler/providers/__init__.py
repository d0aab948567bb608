"""Libraries that compute the same operations, for comparison with IREE's dispatches."""
