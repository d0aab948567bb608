"""Traces of commands with Tracy."""
