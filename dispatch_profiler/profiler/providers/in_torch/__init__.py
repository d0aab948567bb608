"""How torch computes each family of operations, in a module named after the family (see `families`).

None of these modules imports torch: `api` is the module.
"""
