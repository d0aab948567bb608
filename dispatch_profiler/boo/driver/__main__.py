"""`python -m dispatch_profiler.boo.driver`: `dispatch-profiler boo`."""

from __future__ import annotations

import sys

from dispatch_profiler import startup

if __name__ == "__main__":
    module = "dispatch_profiler.boo.driver"
    sys.exit(startup.start(f"{module}.driver", prog=f"python -m {module}"))
