"""Operators of torch between regions as one kernel: which are allowed, their MLIR, and their proof."""
