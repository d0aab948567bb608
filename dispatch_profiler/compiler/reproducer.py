"""A dispatch that does not compile, alone in a file that shows it to whoever can mend it."""

from __future__ import annotations

import re
import shlex

from dispatch_profiler.compiler._base import ModuleJob


def reproducer(job: ModuleJob, dispatch: str, reason: str) -> str:
    """MLIR text with that one function, headed by the reason and the command that shows it.

    The whole source if the function cannot be cut out of it, which is not written by hand here.
    """
    pattern = rf"^func\.func (?:\w+ )?@{re.escape(dispatch)}\(.*?^}}\n"
    function = re.search(pattern, job.source, flags=re.DOTALL | re.MULTILINE)
    aliases = [line for line in job.source.splitlines() if re.match(r"#\w+ = ", line)]
    text = "".join(f"{line}\n" for line in aliases) + function[0] if function else job.source
    command = shlex.join(["iree-compile", *job.flags, f"{dispatch}.mlir", "-o", f"{dispatch}.vmfb"])
    return f"// {' '.join(reason.split())}\n// {command}\n{text}"
