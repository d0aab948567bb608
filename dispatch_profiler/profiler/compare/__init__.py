"""Comparing two runs, from their records or live."""
