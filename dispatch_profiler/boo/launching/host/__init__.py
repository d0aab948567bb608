"""Launches and chains of launches on the CPU."""
