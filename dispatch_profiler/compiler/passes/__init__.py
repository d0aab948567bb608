"""Steps on the IR of a module: applied configurations are verified, kernels are repeated, weights are packed."""
