"""Programs: operators of torch between regions as one kernel. Allowed operators, their MLIR and their references."""
