"""Statistics of samples: intervals, stopping rules and comparisons. Pure functions and objects without I/O."""
