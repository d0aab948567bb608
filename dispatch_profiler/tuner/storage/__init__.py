"""Storages: where evaluations are kept, so that a search can be continued."""
