"""Searches for the fastest configuration of each operation."""
