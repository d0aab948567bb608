"""Searches: rounds of proposing, compiling, measuring and storing, for one operation or several."""
