"""Launches on the CPU: the memory, and the threads that torch leaves spinning."""
