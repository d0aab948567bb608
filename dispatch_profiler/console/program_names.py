"""Names of the commands in messages: as the user called them."""

from __future__ import annotations

import re

#: Script of a checkout -> subcommand, and installed command.
_SCRIPTS = {
    "generator.py": ("generate", "dispatch-generator"),
    "compile.py": ("compile", "dispatch-compile"),
    "profiler.py": ("profile", "dispatch-profiler profile"),
}
#: Programs that have subcommands.
PROGRAMS = ("dispatch-profiler", "python -m dispatch_profiler")


def as_called(text: str, prog: str) -> str:
    """`text` with the names of the three scripts replaced by commands in the style of `prog`.

    `run compile.py again` -> `run dispatch-profiler compile again` for `dispatch-profiler profile`;
    unchanged for `profiler.py`.
    """
    program = next((each for each in PROGRAMS if prog.startswith(each)), "")
    if not program and not prog.startswith("dispatch-"):
        return text
    names = {s: f"{program} {command}" if program else alias for s, (command, alias) in _SCRIPTS.items()}
    return re.sub(r"(?<![\w/])(generator|compile|profiler)\.py\b", lambda match: names[match[0]], text)
