#!/usr/bin/env python3
"""Verify and profile compiled dispatches."""

import sys

from dispatch_profiler.profiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
