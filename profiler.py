#!/usr/bin/env python3
"""Verify and profile compiled dispatches."""

import sys

if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # this folder: of the files in it, only the package is to be imported

import runpy
from pathlib import Path

START = Path(__file__).resolve().parent / "dispatch_profiler" / "startup.py"

if __name__ == "__main__":
    sys.exit(runpy.run_path(str(START))["profile"]())
