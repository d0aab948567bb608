"""What samples say: intervals, when to stop, and how two sets compare. Pure functions and objects that are fed numbers."""
