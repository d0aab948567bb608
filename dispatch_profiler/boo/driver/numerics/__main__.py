"""`python -m dispatch_profiler.boo.driver.numerics`: `dispatch-profiler numerics`."""

from __future__ import annotations

import sys

from dispatch_profiler import startup

if __name__ == "__main__":
    module = "dispatch_profiler.boo.driver.numerics"
    sys.exit(startup.start(f"{module}.cli", prog=f"python -m {module}"))
