"""Libraries that compute the same operations: what IREE's dispatches are compared with."""
