"""The space of one operation: its points, the features of these, and the configurations to start from."""
