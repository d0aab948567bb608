"""Proposals -> evaluations: what builds candidates, and the devices that measure them."""
