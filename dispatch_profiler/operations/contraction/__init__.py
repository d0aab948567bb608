"""Contractions: the base class, which convolutions share, and matrix products."""
