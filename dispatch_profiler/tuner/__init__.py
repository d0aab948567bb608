"""Tuning: from a workload to a library of fast configurations."""
