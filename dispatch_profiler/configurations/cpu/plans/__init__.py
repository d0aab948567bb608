"""The loops and addresses of kernels that the generator writes, for their templates."""
