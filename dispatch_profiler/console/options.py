"""Options in the help of a command: one spelling of each, and first those that most users need.

`--help` fits a screen: a command names the options that most users need, and two examples. `--help-all` prints every
option, and the older spellings, which stay accepted.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dispatch_profiler.console.program_names import as_called
from dispatch_profiler.console.streams import WIDEST

ActionT = TypeVar("ActionT", bound=argparse.Action)
#: Columns before the purpose of an option, at most.
_INVOCATION = 28


@dataclass(frozen=True)
class HelpPage:
    """What `--help` shows: the options with these long names, in this order, or all if there are none; and examples."""

    common: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


class OptionGroup(argparse._ArgumentGroup):
    """A group of options, each shown with its short spellings and the first of its long ones.

    `-j, --jobs, --num-cpu` -> `-j, --jobs`; `--num-cpu` is accepted. Underscores may replace hyphens: `--dry_run`.
    """

    def _add_action(self, action: ActionT) -> ActionT:
        action = super()._add_action(action)
        long = [name for name in action.option_strings if name.startswith("--")]
        for name in long:
            self._option_string_actions.setdefault(_with_underscores(name), action)
        short = [name for name in action.option_strings if name not in long]
        action.option_strings = [*short, *long[:1]]
        return action


def _with_underscores(name: str) -> str:
    return "--" + name[2:].replace("-", "_")


def older_spellings(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Accepted spelling that is not shown -> the spelling that is shown. Without spellings with other hyphens only."""
    older: dict[str, str] = {}
    known = {_with_underscores(name) for action in parser._actions for name in action.option_strings}
    for name, action in parser._option_string_actions.items():
        if action.help != argparse.SUPPRESS and _with_underscores(name) not in known:
            known.add(_with_underscores(name))
            older[name] = action.option_strings[-1]
    return older


class HelpFormatter(argparse.HelpFormatter):
    """As wide as the terminal, but at most 120 columns. Each value that may be left out has its default."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, WIDEST)
        super().__init__(prog, width=width, max_help_position=_INVOCATION)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`--operation-kind, --op-kind KIND`: names the value once, as Python 3.13 does."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _get_help_string(self, action: argparse.Action) -> str:
        """The purpose, followed by `(default: none)` if it names no default."""
        purpose = action.help or ""
        if not action.option_strings or action.nargs == 0 or action.required or "default" in purpose:
            return purpose
        has_value = action.default not in (None, "", (), [], argparse.SUPPRESS)
        return f"{purpose} (default: {'%(default)s' if has_value else 'none'})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = " ".join(as_called(text, self._prog).split())
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        text = " ".join(as_called(text, self._prog).split())
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def usage_of(self, actions: Sequence[argparse.Action]) -> str:
        """`%(prog)s [options] BASE NEW`."""
        values = (
            self._format_args(action, self._get_default_metavar_for_positional(action))
            for action in actions
            if not action.option_strings and action.help != argparse.SUPPRESS
        )
        return " ".join(["%(prog)s [options]", *values])


def usage_text(parser: argparse.ArgumentParser) -> str:
    """The usage of a parser that has none of its own, with `[options]` for all its options."""
    formatter = parser._get_formatter()
    return parser.usage or (
        formatter.usage_of(parser._actions) if isinstance(formatter, HelpFormatter) else "%(prog)s"
    )


def help_text(parser: argparse.ArgumentParser, page: HelpPage, *, is_full: bool) -> str:
    """The text of `--help`, or of `--help-all` if `is_full`."""
    formatter = parser._get_formatter()
    formatter.add_usage(usage_text(parser), [], [])
    formatter.add_text(parser.description)
    is_short = bool(page.common) and not is_full
    for title, purpose, actions in _short_sections(parser, page) if is_short else _sections(parser):
        formatter.start_section(title)
        formatter.add_text(purpose)
        formatter.add_arguments(actions)
        formatter.end_section()
    formatter.add_text(parser.epilog)
    parts = [formatter.format_help()]
    if page.examples:
        parts.append("\n".join(["examples:", *(f"  {line}" for line in page.examples), ""]))
    if notes := _notes(parser, is_short=is_short, is_full=is_full):
        below = parser._get_formatter()
        below.add_text(notes)
        parts.append(below.format_help())
    return "\n".join(parts)


def _sections(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str | None, str | None, Sequence[argparse.Action]]]:
    for group in parser._action_groups:
        yield group.title, group.description, group._group_actions


def _short_sections(
    parser: argparse.ArgumentParser, page: HelpPage
) -> Iterator[tuple[str | None, str | None, Sequence[argparse.Action]]]:
    yield "arguments", None, [each for each in parser._actions if not each.option_strings]
    yield "options", None, [parser._option_string_actions[name] for name in page.common]


def _notes(parser: argparse.ArgumentParser, *, is_short: bool, is_full: bool) -> str:
    """What the list of options leaves out."""
    if is_short:
        shown = [each for each in parser._actions if each.option_strings and each.help != argparse.SUPPRESS]
        return f"Also: --help-all for all {len(shown)} options, -q/--quiet, --version."
    older = older_spellings(parser) if is_full else {}
    if not older:
        return ""
    return f"Older spellings: {', '.join(f'{old} ({new})' for old, new in older.items())}."
