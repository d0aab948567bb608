"""The space of one operation: its points, their features, and the configurations to start from."""
