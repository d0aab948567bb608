"""Operators of aten that begin a region, in a module for each family of operations (see `families`)."""
