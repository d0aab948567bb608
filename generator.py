#!/usr/bin/env python3
"""Generate MLIR dispatches: operations crossed with tuning configurations."""

import sys

from dispatch_profiler.generator.cli import main

if __name__ == "__main__":
    sys.exit(main())
