"""What all commands share at their edge: argument parsing, messages, exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from dispatch_profiler.errors import DispatchProfilerError, UsageError, did_you_mean, reason_of

#: Every dispatch did what was asked.
SUCCESS = 0
#: Some dispatch failed; all the others were done.
FAILED = 1
#: The request could not be met as it stands.
USAGE = 2
#: Ctrl-C, as shells report it.
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated; a mistake is one sentence with the nearest option."""

    def __init__(self, prog: str, description: str, **options: object) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help lists the options"
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized") and unknown[0].startswith("--"):
            options = [o for a in self._actions if a.help != argparse.SUPPRESS for o in a.option_strings]
            hint = did_you_mean(unknown[0].split("=")[0], options).split("? Available")[0]
            hint = hint + "?" if hint.startswith("did") else f"{self.prog} --help lists the options"
        raise UsageError(message, hint=hint)


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
    """Does somebody look at standard error, and can it be drawn on? Not without rich."""
    try:
        from rich.console import Console
    except ImportError:  # whoever only profiles a bundle need not have it
        return False
    return Console(stderr=True).is_terminal


def track(
    items: Iterable[Item],
    total: int,
    label: str,
    *,
    visible: bool = True,
    prints: bool = False,
    size: Callable[[Item], int] = lambda item: 1,
    note: Callable[[], str] = str,
) -> Iterator[Item]:
    """`items`, with a progress bar on standard error while they last, if that is a terminal.

    `prints`: the caller writes to standard output while it has an item; a bar on the same terminal
    gives way. `size` is what an item counts towards `total`; `note` is asked for a few words after each.
    """
    if not (visible and on_terminal()):
        yield from items
        return
    from dispatch_profiler.terminal import bar

    yield from bar(items, total, label, prints=prints, size=size, note=note)


def say(message: str) -> None:
    """To standard error: everything that is not data."""
    print(message, file=sys.stderr, flush=True)


def say_table(rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns to standard error; on a terminal the last one is folded to its width."""
    from dispatch_profiler.terminal import aligned

    say(aligned(rows))


def run(
    prog: str,
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str] | None = None,
    *,
    kept: str = "what was finished is kept, and the next run goes on from there",
) -> int:
    """Call `main` and turn what it raises into a sentence and an exit status.

    `kept` tells after Ctrl-C what became of the work.
    """
    try:
        status = main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()  # a reader that has gone shows here, not when Python ends
        return status
    except DispatchProfilerError as error:
        say(f"{prog}: error: {error}")
        if error.hint:
            say(f"hint: {error.hint}")
        return error.exit_status
    except KeyboardInterrupt:
        say(f"{prog}: interrupted; {kept}")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        say(f"{prog}: error: {place}{reason_of(error)}")
        return FAILED
