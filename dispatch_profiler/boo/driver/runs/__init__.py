"""A signature that is run: launched, timed beside reference backends, and checked."""
