"""What all commands share at their edge: argument parsing, messages, exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import NoReturn, TextIO, TypeVar

from dispatch_profiler import __version__
from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean, reason_of
from dispatch_profiler.streams import WIDEST, discard_output, fold, prepare_streams, printable, width_of

#: Every dispatch did what was asked.
SUCCESS = 0
#: Some dispatch failed; all the others were done.
FAILED = 1
#: The request could not be met as it stands.
USAGE = 2
#: Ctrl-C, as shells report it.
INTERRUPTED = 130


@dataclass
class _Called:
    """The command that runs in this process, as its messages need it."""

    prog: str = ""
    quiet: bool = False


_called = _Called()


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated; a mistake is one sentence with the nearest option.

    Every command has `--version` and `--quiet`. With `passes`, a program's name, arguments after `--`
    are for that program: `parse_args` returns them as `flags`.
    """

    def __init__(self, prog: str, description: str, *, passes: str = "", **options: object) -> None:
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)  # type: ignore[arg-type]
        self._passes = passes
        self.add_argument("--version", action=_Version, help="print the versions of this package and of IREE")
        self.add_argument(
            "-q", "--quiet", action="store_true", help="print only results, warnings and errors"
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`, with `prog` and with `flags`, what follows `--` for another program."""
        ours = list(arguments)
        flags: list[str] = []
        if self._passes and "--" in ours:
            at = ours.index("--")
            ours, flags = ours[:at], ours[at + 1 :]
        return argparse.Namespace(**vars(self.parse_args(ours)), flags=tuple(flags), prog=self.prog)

    def format_help(self) -> str:
        return as_called(super().format_help(), self.prog)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=self._hint(message) or f"{self.prog} --help lists the options")

    def _hint(self, message: str) -> str:
        """The nearest option or value; empty if none is near."""
        if choice := re.match(r"argument (\S+): invalid choice: '(.*?)' \(", message):
            names = choice[1].split("/")
            known = next(
                a.choices for a in self._actions if names[-1] in (*a.option_strings, a.dest, a.metavar)
            )
            return did_you_mean(choice[2], map(str, known or ()))
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if not message.startswith("unrecognized") or not unknown[0].startswith("--"):
            return ""
        if unknown[0].startswith(("--iree-", "--mlir-")):
            name = self.prog if self._passes else as_called("compile.py", self.prog)
            return f"flags of {self._passes or 'iree-compile'} follow a double dash: {name} -- {unknown[0]}"
        options = [o for a in self._actions if a.help != argparse.SUPPRESS for o in a.option_strings]
        nearest = did_you_mean(unknown[0].split("=")[0], options).split("? Available")[0]
        return nearest + "?" if nearest.startswith("did") else ""


class _HelpFormatter(argparse.HelpFormatter):
    """As wide as the terminal, but at most 120 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, WIDEST))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`--operation-kind, --op-kind KIND`: the value once, as Python 3.13 has it."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class _Version(argparse.Action):
    """Prints the version of this package and those of IREE, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"dispatch_profiler {__version__}")
        for package in ("iree-base-compiler", "iree-base-runtime"):
            print(f"{package} {installed_version(package) or 'is not installed'}")
        parser.exit()


def installed_version(package: str) -> str:
    """The version of an installed distribution; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


#: Script of a checkout -> subcommand, installed alias.
_SCRIPTS = {
    "generator.py": ("generate", "dispatch-generator"),
    "compile.py": ("compile", "dispatch-compile"),
    "profiler.py": ("profile", "dispatch-profiler profile"),
}
#: What has subcommands.
PROGRAMS = ("dispatch-profiler", "python -m dispatch_profiler")


def as_called(text: str, prog: str) -> str:
    """`text` with the three commands named in the way that `prog` was called.

    `run compile.py again` -> `run dispatch-profiler compile again` for `dispatch-profiler profile`;
    unchanged for `profiler.py`.
    """
    program = next((each for each in PROGRAMS if prog.startswith(each)), "")
    if not program and not prog.startswith("dispatch-"):
        return text
    names = {s: f"{program} {command}" if program else alias for s, (command, alias) in _SCRIPTS.items()}
    return re.sub(r"(?<![\w/])(generator|compile|profiler)\.py\b", lambda found: names[found[0]], text)


def add_tree_arguments(parser: Parser) -> None:
    """`--generated-dir` and what `add_selection_arguments` adds."""
    parser.add_argument(
        "--generated-dir",
        nargs="?",
        const=".",
        default=".",
        metavar="DIR",
        help="folder in which generated/ lies or is made (default: here)",
    )
    add_selection_arguments(parser)


def add_selection_arguments(parser: Parser) -> None:
    """`--dispatches` and `--op-kind`: texts that `Selection.parse` reads."""
    parser.add_argument(
        "--dispatches",
        "--dispatch",
        default="",
        metavar="PATTERN,...",
        help="only dispatches whose whole name matches a glob or a regular expression",
    )
    parser.add_argument(
        "--operation-kind",
        "--op-kind",
        default="",
        metavar="KIND,...",
        help="only these kinds, such as matmul or conv2d (default: all)",
    )


def add_tool_arguments(parser: Parser, *, step: str, memory: str) -> None:
    """`--build-dir`, a path; `--timeout` of a `step`, in seconds; `--memory-limit`, in bytes.

    `memory` tells whose memory it is. What is not given is None, but for the timeout.
    """
    parser.add_argument(
        "--build-dir", "--iree-bin-dir", type=folder, metavar="DIR",
        help="use the tools of this IREE build, not the wheels",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help=f"time limit of {step} (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--memory-limit", type=mebibytes, metavar="MIB", help=memory)


def boolean(text: str) -> bool:
    """`true`/`false` and their usual spellings, for argparse."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False}
    words["off"] = False
    try:
        return words[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"expected true or false, but got {text!r}") from None


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, but got {text!r}")
    return int(text)


def mebibytes(text: str) -> int:
    """A whole number of MiB, at least 1, in bytes, for argparse."""
    return positive(text) * 2**20


def positive_number(text: str) -> float:
    """A number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, but got {text!r}")
    return value


def folder(text: str) -> Path:
    """A path with `~` resolved."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{text}: there is no such user", hint="write the path without ~") from error


def writable(option: str, text: str) -> Path:
    """Where `option` writes. Raises UsageError if that is a folder, or lies in none: nothing is made."""
    path = folder(text)
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder", hint=f"name a file: {option}={path / 'FILE'}")
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}", hint="make it first")
    return path


def user_cache() -> Path:
    """The folder of this program among the user's caches."""
    return folder(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dispatch_profiler"


Item = TypeVar("Item")


def on_terminal() -> bool:
    """Is standard error a terminal that rich can draw on? False without rich."""
    try:
        from rich.console import Console
    except ImportError:  # optional: profiling a bundle works without it
        return False
    return Console(stderr=True).is_terminal


def line_width() -> int | None:
    """Columns of the longest line on the terminal that standard error is; None if it is none."""
    return min(shutil.get_terminal_size().columns, WIDEST) if on_terminal() else None


def track(
    items: Iterable[Item],
    total: int,
    label: str,
    *,
    visible: bool = True,
    prints: bool = False,
    size: Callable[[Item], int] = lambda item: 1,
    note: Callable[[], str] = str,
    left: Callable[[], str] | None = None,
) -> Iterator[Item]:
    """`items`, with a progress bar on standard error while they last, if that is a terminal.

    `prints`: the caller writes to standard output while it has an item; a bar on the same terminal
    gives way. `size` is what an item counts towards `total`; `note` is asked for a few words after each,
    and `left` for the time left, which is else told by the rate of the last items.
    """
    if _called.quiet or not (visible and on_terminal()):
        yield from items
        return
    from dispatch_profiler.terminal import bar

    yield from bar(items, total, label, prints=prints, size=size, note=note, left=left)


def fitted(line: str, file: TextIO) -> str:
    """`line`, with its middle left out where `file` is a terminal that is too narrow for it."""
    width = width_of(file)
    if width is None or len(line) <= width:
        return line
    end = (width - 3) // 2
    return f"{line[: width - 3 - end]}...{line[len(line) - end :]}"


def say(message: str) -> None:
    """Progress and summaries, to standard error; nothing with `--quiet`."""
    if not _called.quiet:
        warn(message)


def warn(message: str) -> None:
    """Warnings and errors, to standard error, also with `--quiet`; folded to the width of a terminal."""
    text = printable(as_called(message, _called.prog))
    print(fold(text, width_of(sys.stderr)), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Data, to standard output; folded to at most 120 columns on a terminal."""
    text = printable(text)
    print(text if width_of(sys.stdout) is None else fold(text, WIDEST), flush=True)


def say_table(rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns to standard error; on a terminal the last one is folded to its width."""
    from dispatch_profiler.terminal import aligned

    warn(aligned(rows, line_width()))


def run(
    parser: Parser,
    main: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
    *,
    kept: str = "what was finished is kept, and the next run goes on from there",
) -> int:
    """Parse `arguments`, call `main` and turn what it raises into a sentence and an exit status.

    `kept` says after Ctrl-C which work was kept.
    """
    global _called
    before, _called = _called, _Called(parser.prog)
    prepare_streams()
    try:
        options = parser.parse(sys.argv[1:] if arguments is None else arguments)
        _called = replace(_called, quiet=options.quiet)
        status = main(options)
        sys.stdout.flush()  # a reader that has gone shows here, not when Python ends
        return status
    except DispatchProfilerError as error:
        return fail(error)
    except KeyboardInterrupt:
        warn(f"{parser.prog}: interrupted; {kept}")
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()  # the reader of our output has gone (`| head`)
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        warn(f"{parser.prog}: error: {place}{reason_of(error)}")
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            return FAILED
        discard_output()  # it is full
        return FAILED
    finally:
        _called = before


def fail(error: DispatchProfilerError) -> int:
    """Print an error with its hint; returns its exit status."""
    warn(f"{_called.prog}: error: {error}")
    if error.hint:
        warn(f"hint: {error.hint}")
    return error.exit_status
