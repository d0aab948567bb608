"""MLIR text before compilation: its functions, and the rules for text that this package did not render."""
