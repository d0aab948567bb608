"""What shells complete, asked of the shells themselves."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

#: Completes the line that was typed as the Tab key would, writes it to a file and ends the shell.
_ZSH = """\
PS1= PS2= RPS1=
unsetopt BEEP LIST_BEEP PROMPT_CR
zstyle ':completion:*' menu no
autoload -Uz compinit && compinit -u -D
source {script}
_ask() {{ zle complete-word; print -rn -- "$BUFFER" >{answer}; exit 0 }}
zle -N _ask
bindkey '^X' _ask
print ready
"""


def bash_completions(script: Path, line: str) -> list[str]:
    """What bash offers at the end of `line`."""
    program = (
        f"source {script}; COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; "
        '_dispatch_profiler; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return _printed("bash", "--norc", "-c", program)


def fish_completions(script: Path, line: str) -> list[str]:
    """What fish offers at the end of `line`, without descriptions."""
    program = f"source {script}; complete --do-complete={shlex.quote(line)}"
    return [each.partition("\t")[0] for each in _printed("fish", "--no-config", "-c", program)]


def zsh_completes(script: Path, line: str) -> str:
    """`line` after a Tab at its end in an interactive zsh: completed as far as it is unambiguous."""
    setup, answer = Path("setup.zsh").absolute(), Path("answer").absolute()
    answer.unlink(missing_ok=True)
    setup.write_text(_ZSH.format(script=shlex.quote(str(script.absolute())), answer=shlex.quote(str(answer))))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "LINES": "50"}
    with subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    ) as shell:
        os.close(theirs)
        os.write(ours, f"source {setup}\n".encode())
        _read_until(ours, lambda shown: b"\nready" in shown)
        os.write(ours, f"{line}\x18".encode())
        _read_until(ours, lambda shown: False)
        os.close(ours)
        shell.wait(timeout=60)
    return answer.read_text()


def _read_until(terminal: int, found: Callable[[bytes], bool]) -> None:
    """Read what a terminal shows until `found` in it, or until its shell has ended."""
    shown = b""
    while not found(shown):
        try:
            part = os.read(terminal, 65536)
        except OSError:  # so Linux tells that the other end is closed
            return
        if not part:
            return
        shown += part


def _printed(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if line]
