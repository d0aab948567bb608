"""Steps on the IR of a module: what the compiler configured is recorded and compared, kernels are repeated and packed."""
