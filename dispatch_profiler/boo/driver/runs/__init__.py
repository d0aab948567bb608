"""Runs a signature: launches it, times it beside reference backends, and checks its numerics."""
