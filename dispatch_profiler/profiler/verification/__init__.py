"""Inputs, references, and the comparison of results with them."""
