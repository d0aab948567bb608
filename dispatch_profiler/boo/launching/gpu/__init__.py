"""Launches and chains of launches on a stream of a GPU."""
