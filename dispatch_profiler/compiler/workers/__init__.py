"""Builds in processes: on this machine, on a cluster, and one dispatch at a time where a module fails."""
