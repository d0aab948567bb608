"""Draw what a command shows on a terminal: `python scripts/draw_screen.py TEXT FILE.svg COMMAND ...`.

Runs the command in a terminal of its own, for example

    python scripts/draw_screen.py Searching docs/images/live_view.svg dispatch-profiler tune log.yaml -o tuned --time=60s

and draws its last lines, from TEXT on, as they stood when TEXT was shown for the last time: a live view before it
disappears. Then the command gets Ctrl-C.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 100, 12
#: A view that has not been there for so long does not come back.
GONE_SECONDS = 3.0
#: A control sequence with its parameters and its letter, or a character.
_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\s\S])")
#: A control sequence of which the end has not arrived.
_CUT = re.compile(r"\x1b(?:\[[?\d;]*)?$")
#: Rich's pictures ask for a font from the network.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Screen:
    """The lines of a terminal, without colours. Knows the sequences that rich's live displays use."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Show `text`."""
        for match in _TOKEN.finditer(text):
            count, letter, character = match.groups()
            if character is None:
                self._control(count, letter)
            elif character == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif character == "\r":
                self._column = 0
            elif character.isprintable():
                line = self.lines[self._row].ljust(self._column)
                self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
                self._column += 1

    def _control(self, count: str, letter: str) -> None:
        if letter == "A":
            self._row = max(0, self._row - int(count or 1))
        elif letter == "B":
            self._row = min(len(self.lines) - 1, self._row + int(count or 1))
        elif letter == "K":
            self.lines[self._row] = ""


def run(command: Sequence[str], text: str) -> tuple[list[str], int]:
    """The lines of the terminal from `text` on, when it was shown for the last time, and the command's exit status."""
    ours, its = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env={**os.environ, **size}, close_fds=True
    )
    os.close(its)
    screen, shown, gone = Screen(), [""], None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        ready, _, _ = select.select([ours], [], [], 0.2)
        first = next((at for at, line in enumerate(screen.lines) if text in line), None)
        if first is not None:
            shown, gone = screen.lines[first:], time.monotonic()
        elif gone is not None and time.monotonic() - gone > GONE_SECONDS:
            process.send_signal(signal.SIGINT)
            gone = None
        if not ready:
            continue
        try:
            got = rest + decoder.decode(os.read(ours, 65536))
        except OSError:  # the command has ended
            break
        cut = _CUT.search(got)
        rest = cut[0] if cut else ""
        screen.write(got.removesuffix(rest))
    return shown, process.wait()


def picture(lines: Sequence[str], title: str) -> str:
    """The last ROWS lines as SVG, without fonts of the network."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    # Without the last, empty line, descenders are cut.
    for line in (*lines[-ROWS:], ""):
        console.print(Text(line, no_wrap=True, overflow="crop"))
    return _FONTS.sub("", console.export_svg(title=title))


def main() -> int:
    """Returns the exit status of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("file", type=Path, metavar="FILE.svg")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args()
    lines, status = run(options.command, options.text)
    options.file.write_text(picture(lines, shlex.join(options.command)))
    print(*lines, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
