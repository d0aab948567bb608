"""Shared by all commands: argument parsing, messages, exit statuses."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from dispatch_profiler.console.options import HelpFormatter, HelpPage, OptionGroup, help_text, usage_text
from dispatch_profiler.console.program_names import PROGRAMS as PROGRAMS
from dispatch_profiler.console.program_names import as_called
from dispatch_profiler.console.streams import (
    WIDEST,
    discard_output,
    fold,
    prepare_streams,
    printable,
    width_of,
)
from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean, reason_of
from dispatch_profiler.files.destinations import destination
from dispatch_profiler.version import __version__

# -- separators ------------------------------------------------------------------------------------

# An argument parser that takes a value `--` as it is.


_SEPARATOR = "--"
#: Stands for `--` where it is a value. Unicode reserves this code as no character, so no text has it.
_VALUE = "\ufdd0"


class SeparatorParser(argparse.ArgumentParser):
    """Only the first `--` that is an argument of its own ends the options; others are values: `--pattern=--`.

    Versions of argparse differ in which `--` they remove from the values of options and arguments; some leave an empty
    list where a command expects text. So argparse never sees a `--` that is a value.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse.ArgumentParser`."""
        found, unknown = super().parse_known_args(_hide_values(args), namespace)
        return found, [_shown(each) for each in unknown]

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse.ArgumentParser`."""
        found, unknown = super().parse_known_intermixed_args(_hide_values(args), namespace)
        return found, [_shown(each) for each in unknown]

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        return super()._get_value(action, _shown(arg_string))


def _hide_values(args: Sequence[str] | None) -> list[str]:
    """Arguments with each `--` replaced that does not end the options.

    `--output=-- a -- --` -> `--output=VALUE a -- VALUE`
    """
    arguments = list(sys.argv[1:] if args is None else args)
    end = arguments.index(_SEPARATOR) if _SEPARATOR in arguments else len(arguments)
    options = [
        each.removesuffix(_SEPARATOR) + _VALUE if each.startswith("-") and each.endswith(_SEPARATOR) else each
        for each in arguments[:end]
    ]
    values = [_VALUE if each == _SEPARATOR else each for each in arguments[end + 1 :]]
    return [*options, *arguments[end : end + 1], *values]


def _shown(text: str) -> str:
    return text.replace(_VALUE, _SEPARATOR)


#: All dispatches succeeded.
SUCCESS = 0
#: A dispatch failed; all others were processed.
FAILED = 1
#: The request was invalid.
USAGE = 2
#: Nothing failed, but what was asked for could not be decided.
UNDECIDED = 3
#: Ctrl-C, as shells report it.
INTERRUPTED = 130


@dataclass
class _Called:
    """The command that runs in this process, for messages."""

    prog: str = ""
    quiet: bool = False


_called = _Called()


class Parser(SeparatorParser):
    """An argument parser without abbreviations, whose errors suggest the most similar option.

    Every command has `--help-all`, `--version` and `--quiet`. `page` says what `--help` shows. Of several long
    spellings of an option, the first is shown and all are accepted (`OptionGroup`). If `passes` names a program,
    the arguments after `--` are for that program: `parse` returns them as `flags`. With `intermixed`, options may
    stand between positional arguments, some of which are optional.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        page: HelpPage = HelpPage(),
        *,
        passes: str = "",
        intermixed: bool = False,
        **options: object,
    ) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)  # type: ignore[arg-type]
        self._page, self._passes, self._is_intermixed = page, passes, intermixed
        self.add_argument("--help-all", action=_HelpAll, help="show every option, and exit")
        self.add_argument("--version", action=_Version, help="print the versions of this package and of IREE")
        self.add_argument(
            "-q", "--quiet", action="store_true", help="print only results, warnings and errors"
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, with `prog`, and with `flags`: the arguments after `--`."""
        ours = list(arguments)
        flags: list[str] = []
        if self._passes and "--" in ours:
            at = ours.index("--")
            ours, flags = ours[:at], ours[at + 1 :]
        options = self.parse_intermixed_args(ours) if self._is_intermixed else self.parse_args(ours)
        return argparse.Namespace(**vars(options), flags=tuple(flags), prog=self.prog)

    def add_argument_group(self, *args: Any, **options: Any) -> OptionGroup:
        """See `argparse.ArgumentParser`."""
        group = OptionGroup(self, *args, **options)
        self._action_groups.append(group)
        return group

    @property
    def examples(self) -> tuple[str, ...]:
        """Command lines that `--help` shows."""
        return self._page.examples

    def format_usage(self) -> str:
        return f"usage: {usage_text(self) % {'prog': self.prog}}\n"

    def format_help(self) -> str:
        return help_text(self, self._page, is_full=False)

    def format_full_help(self) -> str:
        """The text of `--help-all`."""
        return help_text(self, self._page, is_full=True)

    def error(self, message: str) -> NoReturn:
        message = message.replace(repr(_VALUE), repr(_SEPARATOR))
        message = message.replace(": ignored explicit argument", ": takes no value, but got")
        raise UsageError(message, hint=self._hint(message) or f"{self.prog} --help lists the options")

    def _hint(self, message: str) -> str:
        """The most similar option or value; empty if none is similar."""
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


class _HelpAll(argparse.Action):
    """Prints the help with every option, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_full_help(), end="")
        parser.exit()


class _Version(argparse.Action):
    """Prints the versions of this package and of IREE, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"dispatch_profiler {__version__}")
        for package in ("iree-base-compiler", "iree-base-runtime"):
            print(f"{package} {installed_version(package) or 'is not installed'}")
        parser.exit()


def installed_version(package: str) -> str:
    """The version of an installed distribution; empty if it is not installed."""
    from importlib import metadata  # imported here: few commands ask for versions

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def add_tree_arguments(parser: Parser) -> None:
    """Add `--generated-dir`, and the arguments of `add_selection_arguments`."""
    parser.add_argument(
        "--generated-dir",
        nargs="?",
        const=".",
        default=".",
        metavar="DIR",
        help="folder that contains generated/, or in which to create it (default: here)",
    )
    add_selection_arguments(parser)


def add_selection_arguments(parser: Parser) -> None:
    """Add `--dispatches` and `--operation-kind`, which `Selection.parse` reads."""
    parser.add_argument(
        "--dispatches",
        "--dispatch",
        default="",
        metavar="PATTERN,...",
        help="only dispatches whose full name matches a glob or a regular expression (default: all)",
    )
    parser.add_argument(
        "--operation-kind",
        "--op-kind",
        default="",
        metavar="KIND,...",
        help="only these kinds, such as matmul or conv2d (default: all)",
    )


def add_tool_arguments(parser: Parser, *, step: str, memory: str) -> None:
    """Add `--build-dir`, `--timeout` in seconds per `step`, and `--memory-limit` in bytes.

    `memory` is the help text of the limit. Absent values are None, except for the timeout.
    """
    parser.add_argument(
        "--build-dir", "--iree-bin-dir", type=folder, metavar="DIR",
        help="use the tools of this IREE build instead of the wheels",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=positive_number, default=120.0, metavar="SECONDS",
        help=f"time limit for {step} (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--memory-limit", type=mebibytes, metavar="MIB", help=memory)


def add_choice_argument(parser: Parser, option: str, default: Enum, purpose: str) -> None:
    """Add an option whose values are the members of the enumeration of `default`."""
    parser.add_argument(
        option, choices=[each.value for each in type(default)], default=default.value,
        help=f"{purpose} (default: %(default)s)",
    )  # fmt: skip


def boolean(text: str) -> bool:
    """Parse `true`, `false` and their usual spellings, for argparse."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False}
    words["off"] = False
    try:
        return words[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"expected true or false, but got {text!r}") from None


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, but got {text!r}")
    return int(text)


def mebibytes(text: str) -> int:
    """Parse a whole number of MiB, at least 1, for argparse. Returns bytes."""
    return positive(text) * 2**20


def positive_number(text: str) -> float:
    """Parse a number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, but got {text!r}")
    return value


def folder(text: str) -> Path:
    """A path with `~` expanded. Raises UsageError for an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{text}: unknown user", hint="write the path without ~") from error


def cache_folder(text: str, option: str = "--cache-dir") -> Path:
    """The folder of a cache, from the value of `option`. It need not exist. Raises UsageError if it is not a folder."""
    path = folder(text)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{option}: {path} is a file", hint="name a folder; it need not exist")
    return path


def writable(option: str, text: str) -> Path:
    """The path in the value of `option`. Raises UsageError if it is a folder, or if its parent does not exist."""
    path = folder(text)
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder", hint=f"name a file: {option}={path / 'FILE'}")
    place = destination(path)
    parent = place.parent if place is not None and path.is_symlink() else path.parent
    if not parent.is_dir():
        raise UsageError(f"{option}: there is no folder {parent}", hint="create it first")
    return path


def user_cache() -> Path:
    """The folder of this program in the user's cache folder."""
    return folder(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dispatch_profiler"


Item = TypeVar("Item")


def on_terminal() -> bool:
    """True if standard error is a terminal and rich is installed."""
    try:
        from rich.console import Console
    except ImportError:  # optional: profiling a bundle works without it
        return False
    return Console(stderr=True).is_terminal


def line_width() -> int | None:
    """Columns available on standard error; None if it is not a terminal."""
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
    """Yield `items`, with a progress bar if standard error is a terminal.

    With `prints`, the caller writes to standard output for each item; a bar on the same terminal is hidden
    during the output. `size` is the progress towards `total` that an item makes. `note` returns a short text
    after each item, and `left` the remaining time, by default estimated from the latest items.
    """
    if _called.quiet or not (visible and on_terminal()):
        yield from items
        return
    from dispatch_profiler.console.terminal import bar

    yield from bar(items, total, label, prints=prints, size=size, note=note, left=left)


def is_quiet() -> bool:
    """Whether the command that runs has `--quiet`."""
    return _called.quiet


def shows_live() -> bool:
    """Whether a live view can be shown: standard error is a terminal, and nothing asks for silence."""
    return not _called.quiet and on_terminal()


def fitted(line: str, file: TextIO) -> str:
    """`line`, shortened in the middle if `file` is a terminal that is too narrow for it."""
    width = width_of(file)
    if width is None or len(line) <= width:
        return line
    end = (width - 3) // 2
    return f"{line[: width - 3 - end]}...{line[len(line) - end :]}"


def say(message: str) -> None:
    """Print progress or a summary to standard error, unless `--quiet`."""
    if not _called.quiet:
        warn(message)


def warn(message: str) -> None:
    """Print a warning or an error to standard error, even with `--quiet`, folded to the terminal's width."""
    text = printable(as_called(message, _called.prog))
    print(fold(text, width_of(sys.stderr)), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print data to standard output, folded to at most 120 columns on a terminal. An OSError names standard output."""
    text = printable(text)
    try:
        print(text if width_of(sys.stdout) is None else fold(text, WIDEST), flush=True)
    except OSError as error:
        error.filename = "standard output"
        raise


def say_table(rows: Iterable[Sequence[str]]) -> None:
    """`warn_table`, unless `--quiet`."""
    if not _called.quiet:
        warn_table(rows)


def warn_table(rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns to standard error; on a terminal, fold the last column to the terminal's width."""
    from dispatch_profiler.console.terminal import aligned

    warn(aligned(rows, line_width()))


def run(
    parser: Parser,
    main: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
    *,
    kept: str = "finished work is kept, and the next run continues from there",
) -> int:
    """Parse `arguments` and call `main`. Turns errors into messages and returns the exit status.

    `kept` says in the message after Ctrl-C which work was kept, unless the KeyboardInterrupt has a message.
    """
    global _called
    before, _called = _called, _Called(parser.prog)
    prepare_streams()
    try:
        options = parser.parse(sys.argv[1:] if arguments is None else arguments)
        _called = replace(_called, quiet=options.quiet)
        status = main(options)
        sys.stdout.flush()  # detect a closed pipe here, not when Python exits
        return status
    except DispatchProfilerError as error:
        return fail(error)
    except KeyboardInterrupt as error:
        warn(f"{parser.prog}: interrupted; {str(error) or kept}")
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()  # the reader of our output has exited (`| head`)
        return FAILED
    except OSError as error:
        output = _failing_output()
        place = error.filename or output
        warn(f"{parser.prog}: error: {f'{place}: ' if place else ''}{reason_of(error)}")
        return FAILED
    finally:
        _called = before


def _failing_output() -> str:
    """The name of standard output if writing to it fails, as on a full disk; its buffered text is then discarded."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
        return "standard output"
    return ""


def fail(error: DispatchProfilerError) -> int:
    """Print an error with its hint. Returns the exit status."""
    warn(f"{_called.prog}: error: {error}")
    if error.hint:
        warn(f"hint: {error.hint}")
    return error.exit_status
