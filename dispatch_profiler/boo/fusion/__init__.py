"""Fusion: regions of an aten graph that one kernel computes each. See `schema` for what becomes a region."""
