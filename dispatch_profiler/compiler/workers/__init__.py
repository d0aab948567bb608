"""Builds in processes: on this machine, on a cluster, and again one by one where one dispatch of several fails."""
