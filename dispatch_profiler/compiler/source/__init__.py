"""MLIR text before the compiler sees it: which functions it has, and what is allowed in text that others wrote."""
