"""The edge that the three commands share: sentences, counts, exit statuses, argument types."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dispatch_profiler
from dispatch_profiler import command
from dispatch_profiler.command import FAILED, INTERRUPTED, SUCCESS, USAGE, Parser
from dispatch_profiler.console.plurals import counted, plural
from dispatch_profiler.errors import MissingDependency, RangeError, ToolError, UsageError
from dispatch_profiler.profiler.report.cli import main as report
from dispatch_profiler.profiler.report.join_cli import main as join

ROOT = Path(__file__).parents[1]


def raising(error: BaseException):
    """A main function that raises `error`."""

    def main(options: object) -> int:
        raise error

    return main


def run(main, arguments=()) -> int:
    """`main` as a command called `prog` that takes no options of its own."""
    return command.run(Parser("prog", "A program."), main, arguments)


# -- exit statuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [SUCCESS, FAILED])
def test_what_main_answers_is_the_exit_status(status: int):
    """Nothing is changed when nothing is raised."""
    assert run(lambda options: status) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("the rule"), USAGE),
        (RangeError("the rule"), USAGE),
        (MissingDependency("the rule"), USAGE),
        (ToolError("the rule"), FAILED),
        (OSError(28, "the rule"), FAILED),
        (FileNotFoundError(2, "the rule", "x"), FAILED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_becomes_a_sentence_and_a_status(error, status, capsys):
    """On standard error, with the command's name, without a traceback; standard output stays clean."""
    assert run(raising(error)) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("prog: error: ")
    assert "the rule" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied", "the/path"), "the/path: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("all that it says"), "all that it says"),
    ],
)
def test_an_error_of_the_system_is_told_without_its_number(error, sentence, capsys):
    """The path comes first, as other commands do it."""
    run(raising(error))
    assert capsys.readouterr().err == f"prog: error: {sentence}\n"


def test_a_hint_is_a_line_of_its_own(capsys):
    """The next step stands below the error."""
    run(raising(UsageError("the rule", hint="the next step")))
    assert capsys.readouterr().err == "prog: error: the rule\nhint: the next step\n"


def test_no_hint_no_line(capsys):
    """An empty hint is not announced."""
    run(raising(UsageError("the rule")))
    assert capsys.readouterr().err == "prog: error: the rule\n"


def test_ctrl_c_says_what_is_kept(capsys):
    """The status is that of shells, and the user learns that the work is not lost."""
    assert run(raising(KeyboardInterrupt())) == INTERRUPTED == 130
    assert "interrupted; finished work is kept" in capsys.readouterr().err
    assert run(raising(KeyboardInterrupt("1 of 2 was measured"))) == INTERRUPTED
    assert capsys.readouterr().err == "prog: interrupted; 1 of 2 was measured\n"


def test_a_mistake_of_ours_is_not_hidden():
    """An unexpected exception keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


def test_arguments_come_from_the_command_line_if_none_are_given(monkeypatch):
    """`run(parser, main)` reads sys.argv without the program's name."""
    monkeypatch.setattr(sys, "argv", ["prog", "--quiet"])
    seen: list[bool] = []
    run(lambda options: seen.append(options.quiet) or 0, None)
    assert seen == [True]


# -- options of every command ----------------------------------------------------------------------


def test_quiet_drops_progress_and_summaries_and_keeps_errors(capsys):
    def main(options: argparse.Namespace) -> int:
        print("data")
        command.say("a summary")
        command.say_table([("a", "table")])
        command.warn("a warning")
        list(command.track("ab", 2, "a bar"))
        raise UsageError("the rule")

    assert run(main, ["--quiet"]) == USAGE
    assert capsys.readouterr() == ("data\n", "a warning\nprog: error: the rule\n")
    run(main)
    assert "a summary\n" in capsys.readouterr().err


def test_quiet_ends_with_its_command(capsys):
    run(lambda options: 0, ["-q"])
    command.say("of the program that called it")
    assert capsys.readouterr().err == "of the program that called it\n"


def test_the_versions_are_printed(capsys):
    """Of this package and of IREE, each on a line, on standard output."""
    with pytest.raises(SystemExit) as exited:
        run(lambda options: 0, ["--version"])
    assert exited.value.code == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines == {
        "dispatch_profiler": dispatch_profiler.__version__,
        "iree-base-compiler": version("iree-base-compiler"),
        "iree-base-runtime": version("iree-base-runtime"),
    }


def test_a_missing_iree_is_told(capsys, monkeypatch):
    monkeypatch.setattr(command, "installed_version", lambda package: "")
    with pytest.raises(SystemExit):
        run(lambda options: 0, ["--version"])
    assert "iree-base-compiler is not installed\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prog", "text"),
    [
        ("profiler.py", "run compile.py again, then profiler.py"),
        ("dispatch-profiler profile", "run dispatch-profiler compile again, then dispatch-profiler profile"),
        ("dispatch-compile", "run dispatch-compile again, then dispatch-profiler profile"),
        (
            "python -m dispatch_profiler join",
            "run python -m dispatch_profiler compile again, then python -m dispatch_profiler profile",
        ),
    ],
)
def test_messages_name_the_commands_as_they_were_called(prog: str, text: str, capsys):
    """An installed package has no `compile.py`; a path that ends in it stays as it is."""
    error = UsageError("the rule of my/compile.py", hint="run compile.py again, then profiler.py")
    command.run(Parser(prog, "A program."), raising(error), [])
    assert capsys.readouterr().err == f"{prog}: error: the rule of my/compile.py\nhint: {text}\n"


# -- a reader that has gone ------------------------------------------------------------------------


def with_closed_output(lines: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that prints `lines` lines into a pipe without a reader."""
    program = (
        "import sys; from dispatch_profiler.command import Parser, run\n"
        f"main = lambda options: [print('x' * 80) for _ in range({lines})] and 0\n"
        "sys.exit(run(Parser('prog', 'A program.'), main, []))"
    )
    read, write = os.pipe()
    os.close(read)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    try:
        return subprocess.run(
            [sys.executable, "-c", program],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "PYTHONPATH": str(ROOT), **environment},
        )
    finally:
        os.close(write)


@pytest.mark.parametrize("lines", [10_000, 3], ids=["while it writes", "when it ends"])
def test_a_reader_that_goes_costs_no_traceback(lines: int):
    """`| head` ends the command with a status and without a word, however little it has written."""
    ended = with_closed_output(lines)
    assert (ended.returncode, ended.stderr) == (FAILED, "")


def in_a_shell(program: str, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The shell runs `line`, in which $PROGRAM is a command that does `program`."""
    body = (
        "import sys; from dispatch_profiler.command import Parser, run, say, show\n"
        f"def main(options):\n    {program}\n    return 0\n"
        "sys.exit(run(Parser('prog', 'A program.'), main, []))"
    )
    start = f"{shlex.quote(sys.executable)} -c {shlex.quote(body)}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    return subprocess.run(
        ["sh", "-c", line.replace("$PROGRAM", start)],
        capture_output=True,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        text=True,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_costs_nothing(closed: str, tmp_path: Path):
    """The first file that is opened does not become standard output either."""
    program = "file = open('kept', 'w'); file.write('whole'); file.close(); print('x'); say('y')"
    done = in_a_shell(program, f"$PROGRAM {closed}")
    assert done.returncode == 0, done.stderr
    assert Path("kept").read_text() == "whole"
    assert "x" not in done.stderr and "y" not in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("program", ["print('x')", "print('x', flush=True)", "show('x' * 100_000)"])
def test_a_full_disk_is_one_sentence(program: str):
    done = in_a_shell(program, "$PROGRAM >/dev/full")
    assert (done.returncode, done.stderr) == (
        FAILED,
        "prog: error: standard output: No space left on device\n",
    )


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["streams in ASCII", "a locale in ASCII"],
)
def test_without_utf_8_characters_are_spelled(environment: dict[str, str]):
    """A name of a file may hold bytes that are no text at all."""
    program = r"print('\xb195 \u2192 \xfc \udcff'); say('\xb195')"
    done = in_a_shell(program, "$PROGRAM", **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "+-95 -> \\xfc \\udcff\n", "+-95\n")


# -- the parser ------------------------------------------------------------------------------------


@pytest.fixture
def parser() -> Parser:
    parser = Parser("prog", "A program.")
    command.add_tree_arguments(parser)
    parser.add_argument("--hidden-thing", help=argparse.SUPPRESS)
    return parser


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("--dispatchs=x", "did you mean '--dispatches'?"),
        ("--operation-kin", "did you mean '--operation-kind'?"),
        ("--zzz", "prog --help lists the options"),
        ("--hidden-thin=1", "prog --help lists the options"),
        ("--Dispatches=x", "did you mean '--dispatches'?"),
        (
            "--iree-opt-level=O2",
            "flags of iree-compile follow a double dash: compile.py -- --iree-opt-level=O2",
        ),
        (
            "--mlir-print-ir-after-all",
            "flags of iree-compile follow a double dash: compile.py -- --mlir-print-ir-after-all",
        ),
        ("stray", "prog --help lists the options"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(parser: Parser, argument: str, hint: str):
    """Hidden options are never proposed."""
    with pytest.raises(UsageError, match="unrecognized arguments: ") as caught:
        parser.parse_args([argument])
    assert caught.value.hint == hint


@pytest.mark.parametrize("form", ["Table", "tabel"])
def test_an_unknown_value_is_answered_with_the_nearest(parser: Parser, form: str):
    parser.add_argument("--format", choices=["blocks", "table"])
    with pytest.raises(UsageError, match=f"invalid choice: '{form}'") as caught:
        parser.parse_args([f"--format={form}"])
    assert caught.value.hint == "did you mean 'table'? Available: blocks, table"


def test_what_follows_a_double_dash_is_for_another_program():
    parser = Parser("compile.py", "Compiles.", passes="iree-compile")
    assert parser.parse(["-q", "--", "--iree-x", "--"]).flags == ("--iree-x", "--")
    assert parser.parse([]).flags == ()
    with pytest.raises(UsageError) as caught:
        parser.parse(["--iree-x"])
    assert caught.value.hint == "flags of iree-compile follow a double dash: compile.py -- --iree-x"


def test_help_is_at_most_120_columns_wide(parser: Parser, monkeypatch):
    parser.add_argument("--long", help="word " * 60)
    monkeypatch.setenv("COLUMNS", "300")
    assert 110 < max(map(len, parser.format_help().splitlines())) <= 120
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, parser.format_help().splitlines())) <= 40


def test_options_are_never_abbreviated(parser: Parser):
    """A short form would change its meaning when an option is added."""
    with pytest.raises(UsageError, match="unrecognized"):
        parser.parse_args(["--generated", "x"])


def test_the_help_ends_with_status_0(parser: Parser, capsys):
    """It names every option that is not hidden."""
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--help"])
    assert caught.value.code == 0
    assert "--generated-dir" in (text := capsys.readouterr().out)
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("arguments", "folder"), [([], "."), (["--generated-dir"], "."), (["--generated-dir=x"], "x")]
)
def test_the_folder_is_here_unless_named(parser: Parser, arguments: list[str], folder: str):
    """Without an option, and with the option alone."""
    assert parser.parse_args(arguments).generated_dir == folder


@pytest.mark.parametrize("option", ["--dispatches", "--dispatch"])
def test_the_documents_spellings_of_dispatches(parser: Parser, option: str):
    """The IREE dispatch profiler's documentation uses both."""
    assert parser.parse_args([f"{option}=a,b"]).dispatches == "a,b"


def test_the_tools_of_a_build_and_their_limits(parser: Parser, monkeypatch):
    """A path, seconds and bytes; None where nothing is given, but for the time."""
    monkeypatch.setenv("HOME", "/somewhere")
    command.add_tool_arguments(parser, step="a step", memory="memory")
    given = parser.parse_args(["--iree-bin-dir=~/x", "--timeout=2.5", "--memory-limit=3"])
    assert (given.build_dir, given.timeout, given.memory_limit) == (Path("/somewhere/x"), 2.5, 3 * 2**20)
    default = parser.parse_args([])
    assert (default.build_dir, default.timeout, default.memory_limit) == (None, 120.0, None)
    with pytest.raises(UsageError, match="--memory-limit: expected a whole number of at least 1"):
        parser.parse_args(["--memory-limit=0"])


# -- progress --------------------------------------------------------------------------------------


@pytest.mark.parametrize("visible", [True, False])
def test_progress_passes_everything_on_and_is_silent(visible, capsys):
    """Standard error is no terminal here; standard output is never touched."""
    assert list(command.track(iter("abc"), 3, "letters", visible=visible)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal(monkeypatch, capsys):
    """On standard error, with its label and how many are done."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(command.track(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "letters" in captured.err and "3/3" in captured.err


@pytest.mark.parametrize("width", [30, 80])
def test_a_narrow_terminal_cuts_the_note_and_not_the_count(monkeypatch, capsys, width: int):
    """On one line, whatever there is to say."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    list(command.track(iter("abc"), 3, "letters", note=lambda: "a note of many, many words"))
    err = capsys.readouterr().err
    assert "3/3" in err
    assert ("a note of many, many words" in err) == (width == 80)
    assert err.count("\n") == 1  # the end of the bar


# -- width -------------------------------------------------------------------------------------------

LONG = "error: " + "word " * 40 + "a/path/" * 30 + "_".join(["name"] * 10)


@pytest.mark.parametrize("columns", [40, 80, 120, 300])
def test_a_terminal_gets_no_line_over_120_columns(monkeypatch, capsys, columns: int):
    """Messages none over its own width either; nothing is lost."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    command.warn(LONG)
    command.show(LONG)
    out, err = capsys.readouterr()
    for text, most in ((out, 120), (err, min(columns, 120))):
        lines = text.splitlines()
        assert max(map(len, lines)) <= most
        assert "".join(text.split()) == "".join(LONG.split())
        assert not lines[0].startswith(" ") and all(line.startswith("  ") for line in lines[1:])


def test_a_file_gets_lines_as_they_are(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    command.warn(LONG)
    command.show(LONG)
    assert capsys.readouterr() == (LONG + "\n", LONG + "\n")


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_in_a_file_is_not_folded(monkeypatch, capsys):
    """Whatever width the environment tells: `grep` finds a reason whole."""
    monkeypatch.setenv("COLUMNS", "40")
    command.say_table([("1 x", "why [not]", "word " * 30), ("12 x", "", "short")])
    assert capsys.readouterr().err.splitlines() == [
        "  1 x   why [not]  " + " ".join(["word"] * 30),
        "  12 x             short",
    ]


def test_a_table_on_a_terminal_is_folded_to_its_width(monkeypatch, capsys):
    """Its last column, so that the others stay readable."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    command.say_table([("1 x", "not compiled", "word " * 30 + "x" * 50)])
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("  1 x  not compiled  word")
    assert "".join(line[21:] for line in lines).replace(" ", "") == "word" * 30 + "x" * 50


def test_a_table_without_room_for_its_last_column_is_folded_as_a_whole(monkeypatch, capsys):
    """A column of single letters cannot be read."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    command.say_table([("SSS_NN_0", "0.5 ms", "1.00x the default", "tile_config_64x128_8x32x4")])
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["  SSS_NN_0  0.5 ms  1.00x the default", "    tile_config_64x128_8x32x4"]


# -- argument types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        *((command.boolean, text, True) for text in ("true", "True", "1", "yes", "on")),
        # `bool("false")` would be True.
        *((command.boolean, text, False) for text in ("false", "FALSE", "0", "no", "off")),
        *((command.positive, text, int(text)) for text in ("1", "64", "007")),
        *((command.positive_number, text, float(text)) for text in ("0.5", "1e3", "7")),
    ],
)
def test_an_argument_is_read_in_its_usual_spellings(read, text: str, value: float):
    assert (type(read(text)), read(text)) == (type(value), value)


@pytest.mark.parametrize(
    ("read", "texts", "message"),
    [
        (command.boolean, ("", "maybe", "2", "truee"), "expected true or false, but got {text!r}"),
        # Digits of other scripts and superscripts too.
        (
            command.positive,
            ("", "0", "-1", "1.5", "1e3", "x", "²", "٣", " 1"),
            "whole number of at least 1, but got",
        ),
        # Infinity and NaN are no limits.
        (
            command.positive_number,
            ("", "0", "-0.0", "-1", "nan", "inf", "1e999", "x"),
            "number above 0, but got",
        ),
    ],
)
def test_every_other_argument_is_rejected_with_what_was_expected(read, texts: tuple[str, ...], message: str):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=message.format(text=text)):
            read(text)


def test_a_folder_may_start_at_home(monkeypatch):
    """`--generated-dir=~/x` works where the shell does not expand it."""
    monkeypatch.setenv("HOME", "/somewhere")
    assert command.folder("~/x") == Path("/somewhere/x")
    assert command.folder("x/~") == Path("x/~")


def test_the_home_of_an_unknown_user_is_rejected():
    """A user that does not exist is a request that cannot be met."""
    with pytest.raises(UsageError, match="~no-such-user"):
        command.folder("~no-such-user/x")


@pytest.mark.parametrize(
    ("singular", "several"),
    [
        ("operation", "operations"), ("dispatch", "dispatches"), ("process", "processes"), ("entry", "entries"),
        ("axis", "axes"), ("best configuration", "best configurations"), ("array", "arrays"),
    ],
)  # fmt: skip
def test_a_noun_is_plural_unless_there_is_one(singular: str, several: str):
    assert [plural(count, singular) for count in (0, 1, 2)] == [several, singular, several]
    assert [counted(count, singular) for count in (0, 1, 2)] == [
        f"0 {several}",
        f"1 {singular}",
        f"2 {several}",
    ]


#: `1 dispatches`, `1 of 1 dispatches`, `1 finished dispatches`
_WRONG = re.compile(
    r"\b1 (?:of 1 )?(?:\w+ )?(?:dispatches|operations|configurations|records|measurements|samples|figures|modules)\b"
)


@pytest.mark.slow
def test_commands_count_one_dispatch_in_the_singular(run, capsys, monkeypatch, tmp_path):
    """Every command, with a tree of one dispatch on the null target."""
    monkeypatch.chdir(tmp_path)
    sizes = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    said = [
        run("generator", "--target=null", "--dispatches=*_default", *sizes),
        run("compile"),
        run("profiler", "--output=data.csv", "--budget=0.2", "--precision=1"),
        run("profiler", "--output=data.csv", "--resume"),
    ]
    report(["data.jsonl", "-o", "report.html", "--markdown=run.md"])
    report(["data.jsonl", "data.jsonl", "-o", "report.html"])
    join(["data.jsonl", "data.jsonl", "-o", "joined.csv"])
    text = "".join(each.out + each.err for each in said) + capsys.readouterr().err
    text += Path("run.md").read_text() + re.sub(r"<[^>]*>", "", Path("report.html").read_text())

    for singular in (
        "Generated 1 dispatch of 1 operation for null", "1 dispatch: 1 compiled", "1 dispatch: 1 SUCCESS",
        "already in data.jsonl: 1 of 1 dispatch\n", "the report of 1 dispatch to", "ignoring 1 duplicate record of 2",
        "Writing 1 record (1 duplicate removed)", "1 dispatch of 1 operation, 1 measured",
    ):  # fmt: skip
        assert singular in text
    assert _WRONG.findall(text) == []
