"""Callable kernels: an operation by its shape or its MIOpen command, compiled once and launched from Python."""
