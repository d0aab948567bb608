"""Several launches as one call: on the host, and on a stream of a GPU."""
