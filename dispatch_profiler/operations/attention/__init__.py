"""Attention: the operation, and its reference."""
