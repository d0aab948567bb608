"""Traces commands with Tracy."""
