"""An argument parser that takes a value `--` as it is."""

from __future__ import annotations

import argparse
from typing import Any

_SEPARATOR = "--"


class SeparatorParser(argparse.ArgumentParser):
    """Only the first `--` that is an argument of its own ends the options; others are values: `--pattern=--`.

    argparse of Python 3.12 and before removes a `--` from the values of every option and argument, which leaves an empty
    list where a command expects text.
    """

    _is_separated = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse.ArgumentParser`."""
        self._is_separated = False
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        keeps = action.nargs in (argparse.PARSER, argparse.REMAINDER)
        if _SEPARATOR in arg_strings and not keeps and _removes_separators():
            if action.option_strings or self._is_separated:
                arg_strings = [_SEPARATOR, *arg_strings]  # argparse removes the first
            else:
                self._is_separated = True
        return super()._get_values(action, arg_strings)


def _removes_separators() -> bool:
    """Whether this version of argparse removes `--` from the values of an option."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--value")
    return bool(parser.parse_args([f"--value={_SEPARATOR}"]).value != _SEPARATOR)
