"""Fuses regions of an aten graph into one kernel each. `schema` has the rules for regions."""
