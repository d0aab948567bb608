"""A value `--` reaches a command as it is, whatever the version of argparse."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from dispatch_profiler.__main__ import COMMANDS, main
from dispatch_profiler.command import USAGE, Parser, SeparatorParser


@pytest.fixture
def parser() -> SeparatorParser:
    parser = SeparatorParser()
    parser.add_argument("-o", "--output")
    parser.add_argument("--folder", nargs="?", const="here")
    parser.add_argument("--several", nargs="+")
    parser.add_argument("--choice", choices=["--", "x"])
    parser.add_argument("first", nargs="?")
    parser.add_argument("second", nargs="?")
    parser.add_argument("others", nargs="*")
    return parser


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--output=--"], "output", "--"),
        (["-o=--"], "output", "--"),
        (["-o--"], "output", "--"),
        (["--output=---"], "output", "---"),
        (["--folder=--"], "folder", "--"),
        (["--folder", "--"], "folder", "here"),
        (["--several=--"], "several", ["--"]),
        (["--choice=--"], "choice", "--"),
    ],
)
def test_an_option_gets_its_value(
    parser: SeparatorParser, arguments: list[str], name: str, value: object
) -> None:
    assert getattr(parser.parse_args(arguments), name) == value


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--", "a", "b"], ("a", "b", [])),
        (["a", "--", "--"], ("a", "--", [])),
        (["--", "--", "b"], ("--", "b", [])),
        (["--", "a", "--", "c", "--", "--"], ("a", "--", ["c", "--", "--"])),
        (["a", "b", "--", "-c"], ("a", "b", ["-c"])),
        (["a", "b", "--"], ("a", "b", [])),
    ],
)
def test_only_the_first_argument_ends_the_options(
    parser: SeparatorParser, arguments: list[str], values: tuple[object, ...]
) -> None:
    for _ in range(2):  # a parser may be used again
        found = parser.parse_args(arguments)
        assert (found.first, found.second, found.others) == values


def test_a_value_does_not_end_the_options(parser: SeparatorParser) -> None:
    found = parser.parse_args(["--output=--", "a", "--folder=x"])
    assert (found.output, found.first, found.folder) == ("--", "a", "x")


def _valued(parser: Parser) -> list[str]:
    """Every spelling of every option that takes a value."""
    return [each for action in parser._actions if action.nargs != 0 for each in action.option_strings]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command uses the value or rejects it in a sentence."""
    make_parser = import_module(COMMANDS[name][0]).make_parser
    needed = [a for a in make_parser()._actions if not a.option_strings and a.nargs not in ("?", "*")]
    arguments = [str(next(iter(each.choices))) if each.choices else "missing" for each in needed]
    if name == "generate":
        arguments += ["--m=8", "--lhs=f32", "--default-config=only"]
    for at, option in enumerate(_valued(make_parser())):
        folder = tmp_path / str(at)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert isinstance(main([name, *arguments, f"{option}=--"]), int)
        assert "Traceback" not in capsys.readouterr().err


def test_the_last_argument_of_a_command_may_be_the_second_separator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["merge", "missing", "--", "--", "other"]) == USAGE
    assert "missing: no such library" in capsys.readouterr().err


def test_a_parser_of_a_version_that_keeps_values(
    parser: SeparatorParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 passes values on: then nothing is added."""
    seen: list[list[str]] = []

    def keep(self: object, action: argparse.Action, values: list[str]) -> object:
        seen.append(values)
        return values[0] if values else action.default

    monkeypatch.setattr(argparse.ArgumentParser, "_get_values", keep)
    assert parser.parse_args(["--output=--"]).output == "--"
    assert ["--"] in seen
