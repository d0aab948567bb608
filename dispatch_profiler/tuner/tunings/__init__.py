"""Tuning files: what to tune and how, made from a workload, with the share of each problem in its time."""
