"""The help of every command fits a screen, and options have one spelling in all of them; older ones are accepted."""

from __future__ import annotations

import argparse
import shlex
from functools import cache

import pytest

from dispatch_profiler.__main__ import COMMANDS, NESTED, parsers
from dispatch_profiler.command import USAGE, Parser, run
from dispatch_profiler.console.options import HelpPage, older_spellings

NAMES = [*COMMANDS, *map(" ".join, NESTED)]
#: Spellings of what all commands spell alike.
OLDER = (
    "--num-cpu", "--max-processes", "--output-dir", "--csv", "--thr", "--time-budget", "--architecture", "--op-kind",
    "--dispatch", "--iree-bin-dir", "--benchmark",
)  # fmt: skip


@cache
def parser_of(name: str) -> Parser:
    return parsers()[name]


def shown(parser: Parser) -> list[argparse.Action]:
    """The options that `--help-all` shows."""
    return [each for each in parser._actions if each.option_strings and each.help != argparse.SUPPRESS]


@pytest.mark.parametrize("name", NAMES)
def test_the_help_fits_a_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 columns; it has two examples, which the command accepts."""
    monkeypatch.setenv("COLUMNS", "80")
    parser = parser_of(name)
    lines = parser.format_help().rstrip().splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert len(parser.examples) == 2
    for example in parser.examples:
        assert f"  {example}" in lines
        parser.parse(shlex.split(example)[len(parser.prog.split()) :])


@pytest.mark.parametrize("name", NAMES)
def test_the_full_help_has_every_option_with_its_default(name: str) -> None:
    parser = parser_of(name)
    text = " ".join(parser.format_full_help().partition("\noptions:")[2].split())
    for action in shown(parser):
        at = f" {text}".index(f" {', '.join(action.option_strings)} ")
        assert action.nargs == 0 or action.required or not action.help or "default" in text[at : at + 500]


@pytest.mark.parametrize("name", NAMES)
def test_an_option_has_one_spelling(name: str) -> None:
    """In all commands; a short one may stand beside it."""
    parser = parser_of(name)
    for action in shown(parser):
        long = [each for each in action.option_strings if each.startswith("--")]
        assert len(long) == 1 and "_" not in long[0]
        assert long[0] not in OLDER
        assert ("-j" in action.option_strings) == (long[0] == "--jobs")
        assert "-o" in action.option_strings or long[0] != "--output"


@pytest.mark.parametrize(
    ("name", "line", "option", "value"),
    [
        ("compile", "--num-cpu=2", "jobs", 2),
        ("preload", "commands.txt --max-processes=2", "jobs", 2),
        ("tune", "log.yaml --output_dir=x", "output", "x"),
        ("gen_configs", "log.yaml --output-dir x --architecture=gfx950", "target", "gfx950"),
        ("gen_configs", "log.yaml --thr=5%", "min_share", 5.0),
        ("optimize", "tunings --time-budget=9", "budget", 9.0),
        ("optimize", "tunings --library_dir=x --log_summary=y", "library_dir", "x"),
        ("merge", "a b c --force_merge False --no_eff", "force_merge", False),
        ("boo", "--csv=a.csv conv", "output", "a.csv"),
        ("profile", "--dispatch=x --op-kind=conv2d --benchmark=false", "profiling_enabled", False),
        ("generate", "--dry_run --split_k_slices=2", "split_k_slices", "2"),
    ],
)
def test_older_spellings_are_accepted(name: str, line: str, option: str, value: object) -> None:
    assert getattr(parser_of(name).parse(line.split()), option) == value


@pytest.fixture
def parser() -> Parser:
    made = Parser("prog", "A program.", HelpPage(("--jobs",), ("prog --jobs=2",)))
    made.add_argument("-j", "--jobs", "--num-cpu", type=int, metavar="N", help="processes")
    made.add_argument_group("more").add_argument("--dry-run", action="store_true", help="print only")
    return made


def test_a_message_names_the_spelling_that_is_shown(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parser, lambda options: 0, ["--num-cpu=x"]) == USAGE
    assert "argument -j/--jobs: invalid int value: 'x'" in capsys.readouterr().err


def test_the_short_help_has_the_common_options(parser: Parser, capsys: pytest.CaptureFixture[str]) -> None:
    text = parser.format_help()
    assert "-j, --jobs N processes (default: none)" in " ".join(text.split())
    assert "--dry-run" not in text and "all 6 options" in text and "examples:\n  prog --jobs=2\n" in text
    with pytest.raises(SystemExit):
        parser.parse(["--help-all"])
    text = capsys.readouterr().out
    assert "--dry-run" in text and "Older spellings: --num-cpu (--jobs)." in text
    assert older_spellings(parser) == {"--num-cpu": "--jobs"}
    assert parser.parse(["--dry_run", "--num_cpu=3"]).jobs == 3
