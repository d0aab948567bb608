"""Comparison of two runs, from their records or live."""
