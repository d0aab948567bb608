"""Standard streams that a command can always write to: closed, in ASCII, without a reader, on narrow terminals."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from typing import TextIO

#: What a stream that has no such character gets.
_ASCII = {
    "±": "+-",
    "\N{MULTIPLICATION SIGN}": "x",
    "→": "->",
    "…": "...",
    "\N{EN DASH}": "-",
    "≤": "<=",
    "≥": ">=",
    "µ": "u",
}
_HANDLER = "dispatch_profiler.ascii"
#: Columns of the longest line on a terminal.
WIDEST = 120
#: A longer word, such as a path, is broken after one of these.
_BREAK = re.compile(r"(?<=[_/,:])")
#: Control characters but line feed and tab, marks that reverse the direction of text, and lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` with its control characters escaped, as names, compilers and files may hold them.

    `a\x1b[2Jb` (clear the screen) -> `a\\x1b[2Jb`
    """
    return _CONTROL.sub(
        lambda match: (
            match[0].encode("ascii", "backslashreplace").decode()
            if match[0] > "\x7f"
            else f"\\x{ord(match[0]):02x}"
        ),
        text,
    )


def prepare_streams() -> None:
    """Make sure that no character and no closed stream makes printing fail."""
    _open_closed_streams()
    codecs.register_error(_HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def discard_output() -> None:
    """Send what is still to be printed nowhere: Python would otherwise complain when it exits."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream without a file has no such trouble
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width_of(stream: TextIO) -> int | None:
    """How long lines on `stream` may be: as its terminal, at most 120 columns; None if it is no terminal."""
    return min(shutil.get_terminal_size().columns, WIDEST) if stream.isatty() else None


def fold(text: str, width: int | None) -> str:
    """`text` with lines of at most `width` columns; what is continued is indented by two more."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, width))


def _fold_line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + 2, width // 2)
    wrapped = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [piece for part in wrapped for piece in _broken(part, indent, width)]


def _broken(line: str, indent: str, width: int) -> list[str]:
    """`line`, which holds a long word, in pieces of at most `width` columns."""
    pieces = [""]
    for part in _BREAK.split(line):
        if len(pieces[-1]) + len(part) > width and pieces[-1].strip():
            pieces.append(indent)
        pieces[-1] += part
    return [piece[at : at + width] for piece in pieces for at in range(0, len(piece), width)]


def _open_closed_streams() -> None:
    """After `>&-` the first file that is opened would become standard output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """`±95% ü` -> `+-95% \\xfc`, as an error handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = (_ASCII.get(each, each).encode("ascii", "backslashreplace").decode() for each in text)
    return "".join(plain), error.end
