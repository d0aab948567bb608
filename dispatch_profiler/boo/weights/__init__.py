"""What derives from weights, such as a packed filter: never outdated, unless the user has frozen the weights.

`memory` copies and compares the bytes of tensors, `snapshots` keeps what derives from them.
"""
