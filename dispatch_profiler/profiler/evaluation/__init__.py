"""Candidates in, records out: worker processes, devices and machines."""
