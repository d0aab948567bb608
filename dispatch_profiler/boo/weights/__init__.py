"""Values that derive from weights, such as a packed filter: never outdated, unless the user has frozen the weights.

`memory` copies and compares the bytes of tensors. `snapshots` keeps values that derive from weights, and `derivations` makes
them: for one weight, or for all operands of a run.
"""
