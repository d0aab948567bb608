#!/usr/bin/env python3
"""Compile a generated tree into vmfbs for verification and profiling."""

import sys

from dispatch_profiler.compiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
