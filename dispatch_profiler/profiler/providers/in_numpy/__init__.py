"""How numpy computes each family of operations, in a module named after the family (see `families`)."""
