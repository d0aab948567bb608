"""Tunes kernels for a range of numbers of rows or images: kernels that take the number from their operands."""
