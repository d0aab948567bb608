"""Makes printing safe: to closed streams, in ASCII, without a reader, and on narrow terminals."""

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

#: Replacements for streams that cannot encode a character.
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
#: Maximum width of lines on a terminal, in columns.
WIDEST = 120
#: Words that are too long for a line, such as paths, are broken after these characters.
_BREAK = re.compile(r"(?<=[_/,:])")
#: Control characters except line feed and tab, characters that change the direction of text, and surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` with control characters escaped, which names, compilers and files may contain.

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
    """Ensure that closed streams and unencodable characters do not make printing fail."""
    _open_closed_streams()
    codecs.register_error(_HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def discard_output() -> None:
    """Redirect buffered output to /dev/null, because Python would report an error when it exits."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream without a file cannot fail that way
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def width_of(stream: TextIO) -> int | None:
    """The width of the terminal, at most 120 columns; None if `stream` is not a terminal."""
    return min(shutil.get_terminal_size().columns, WIDEST) if stream.isatty() else None


def fold(text: str, width: int | None) -> str:
    """`text` with lines of at most `width` columns; continuation lines are indented by two more."""
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
    """Break `line`, which contains a long word, into pieces of at most `width` columns."""
    pieces = [""]
    for part in _BREAK.split(line):
        if len(pieces[-1]) + len(part) > width and pieces[-1].strip():
            pieces.append(indent)
        pieces[-1] += part
    return [piece[at : at + width] for piece in pieces for at in range(0, len(piece), width)]


def _open_closed_streams() -> None:
    """Open /dev/null for closed streams, else the first file opened would become standard output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """An error handler for `codecs`: `±95% ü` -> `+-95% \\xfc`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = (_ASCII.get(each, each).encode("ascii", "backslashreplace").decode() for each in text)
    return "".join(plain), error.end
