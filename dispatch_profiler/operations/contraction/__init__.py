"""Products of two operands that are summed over some axes: what they share with convolutions, and matrix products."""
