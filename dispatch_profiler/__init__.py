"""Generate, compile, verify, profile and tune MLIR dispatches with IREE."""

__version__ = "0.1.0"
