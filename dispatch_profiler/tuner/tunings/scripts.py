"""Scripts beside tuning files: each searches for the configuration of one problem, wherever it is called."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from dispatch_profiler import startup
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target

#: A program that runs the command of this package, installed or not, and imports nothing from the current directory.
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    'sys.exit(runpy.run_path({file})["start"]("dispatch_profiler.tuner.commands.optimize_cli", '
    'prog="dispatch-profiler optimize"))'
)


def script_of(tuning: Path, operation: Operation, target: Target) -> str:
    """The text of the script beside the tuning file `tuning`.

    It runs `dispatch-profiler` if that is on the PATH, otherwise this package with this Python. A file that `target` names
    relative to the current directory is found from anywhere.
    """
    search = f'--only=search "$here"/{tuning.name} "$@"'
    start = ""
    if target.named_file and not os.path.isabs(target.named_file):
        begun = shlex.quote(os.path.relpath(Path.cwd(), tuning.parent))
        start = f'# {target.name} is relative to this folder.\ncd "$here"/{begun} || exit\n'
    python = shlex.join([sys.executable, "-c", _PROGRAM.format(file=json.dumps(startup.__file__))])
    return f"""#!/bin/sh
# Searches for the fastest configuration of {operation.name}.
# Takes the options of `dispatch-profiler optimize`.
here=$(cd "$(dirname "$0")" && pwd) || exit
{start}if command -v dispatch-profiler >/dev/null; then
    exec dispatch-profiler optimize {search}
fi
exec {python} {search}
"""
