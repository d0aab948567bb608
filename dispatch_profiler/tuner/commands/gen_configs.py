"""`python gen_configs.py`: the command `gen_configs`, by the name of the script in hipBLASLt's tuning workflow."""

from __future__ import annotations

import sys

from dispatch_profiler import startup

if __name__ == "__main__":
    sys.exit(startup.start("dispatch_profiler.tuner.commands.gen_configs_cli"))
