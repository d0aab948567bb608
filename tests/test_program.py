"""One command: `dispatch-profiler COMMAND`, how it is called, what shells complete, and values `--`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from shell_helpers import bash_completions, fish_completions, zsh_completes

from dispatch_profiler.__main__ import COMMANDS, main
from dispatch_profiler.command import USAGE, Parser, SeparatorParser

ROOT = Path(__file__).parents[1]
COMPLETION = "completion"


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[str], Path]:
    """`installed("dispatch-compile")`: that entry point of setup.cfg, as pip would install it."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    entry_points = dict(line.split(" = ") for line in lines if line)

    def install(name: str) -> Path:
        module, _, function = entry_points[name].partition(":")
        script = tmp_path / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.append({str(ROOT)!r})\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
        return script

    return install


def called(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: dispatch-profiler COMMAND [options]\n") and not err
    assert all(f"\n  {name} " in out for name in COMMANDS)
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert (exited.value.code, capsys.readouterr().out) == (0, out)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["Compil"], "unknown command 'Compil'", "did you mean 'compile'? Available: generate, compile, "),
        (
            ["--format=table"],
            "unrecognized arguments",
            "for example dispatch-profiler profile --format=table",
        ),
        ([COMPLETION, "tcsh"], "invalid choice: 'tcsh'", "bash, zsh, fish"),
    ],
)
def test_a_mistake_is_one_sentence_with_a_hint(capsys, arguments, message, hint):
    assert main(arguments) == 2
    error, hinted = capsys.readouterr().err.splitlines()
    assert message in error and hint in hinted


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_options_of_all(capsys, name: str):
    """Its usage names it as it was called."""
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as exited:
            main([name, option], prog="dispatch-profiler")
        assert exited.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: dispatch-profiler {name} ")
    assert "--quiet" in out and "\niree-base-runtime " in out
    assert "generator.py" not in out and "compile.py" not in out and "profiler.py" not in out


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("dispatch-profiler", ["dispatch-profiler", "profile"]),
        ("dispatch-compile", ["dispatch-compile"]),
        ("dispatch-generator", ["dispatch-generator"]),
    ],
)
def test_installed_commands_tell_their_own_names(installed, script: str, names: list[str]):
    done = called(installed(script), *names[1:], "--nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{' '.join(names)}: error: unrecognized arguments: --nonsense\n")


@pytest.mark.slow
def test_the_module_is_the_same_command(installed):
    """But for its name."""
    module = [sys.executable, "-m", "dispatch_profiler"]
    for arguments in ([], ["profile"], ["report"], ["nonsense"]):
        one, other = called(installed("dispatch-profiler"), *arguments), called(*module, *arguments)
        assert (one.returncode, one.stdout.replace("dispatch-profiler", "python -m dispatch_profiler")) == (
            other.returncode,
            other.stdout,
        )
        assert one.stderr.replace("dispatch-profiler", "python -m dispatch_profiler") == other.stderr


@pytest.mark.parametrize("script", ["generator.py", "compile.py", "profiler.py"])
def test_the_scripts_tell_their_own_names(script: str):
    done = called(sys.executable, ROOT / script, "--nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{script}: error: unrecognized arguments: --nonsense\n")


@pytest.mark.slow
def test_a_tree_goes_through_the_one_command(capsys, monkeypatch):
    """With --quiet there is nothing to read but data."""
    sizes = ["--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32"]
    assert main(["generate", "--quiet", "--target=null", *sizes]) == 0
    assert main(["compile", "--quiet", "-j1"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["profile", "--quiet", "--dispatches=*_default", "--format=json", "--output=out.csv"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    assert main(["join", "-q", "out.jsonl", "--output=joined.csv"]) == 0
    assert main(["report", "-q", "joined.jsonl"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("report.html").exists()


@pytest.mark.slow
def test_every_command_works_in_a_locale_without_utf_8():
    """Although folders, files and tags have other characters in their names; what is written is UTF-8."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    tree = "--generated-dir=größe"
    for line in (
        ["generate", tree, "--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32"],
        ["compile", tree, "-j1"],
        [
            "profile",
            tree,
            "--dispatches=*default",
            "--format=table",
            "--tags=wo:zürich",
            "--output=größe.csv",
        ],
        ["profile", tree, "--dispatches=*default", "--resume", "--tags=wo:zürich", "--output=größe.csv"],
        ["compare", "größe.jsonl", "größe.jsonl"],
        ["report", "größe.jsonl", "--title=größe", "--markdown=größe.md", "--junit=größe.xml"],
        ["join", "größe.jsonl", "--output=joined.csv"],
    ):
        command = [sys.executable, "-m", "dispatch_profiler", *line]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, (line, done.stderr)
    for name in ("größe.csv", "größe.jsonl", "größe.md", "größe.xml", "joined.csv", "report.html"):
        assert Path(name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "operations"),
    [
        (["--m=64"], ["matmul_64x256x256_f16t_f16t_f16t", "matmul_64x256x256_f32t_f32t_f32t"]),
        (
            ["--batch-count=4"],
            ["batch_matmul_4x256x256x256_f16t_f16t_f16t", "batch_matmul_4x256x256x256_f32t_f32t_f32t"],
        ),
        (
            ["--conv-padding=0", "--lhs=f32"],
            ["conv2d_1x56x56x64_3x3x64x64_1x54x54x64_f32nhwc_f32hwcf_f32nhwc_s1x1_p0x0_d1x1_g1"],
        ),
        (["--norm-rows=128"], ["layer_norm_128x768_f16t_eps1em05", "layer_norm_128x768_f32t_eps1em05"]),
        (
            ["--norm-rows=128", "--op-kind=layer_norm_weight_backward"],
            ["layer_norm_weight_backward_128x768_f16t", "layer_norm_weight_backward_128x768_f32t"],
        ),
    ],
)
def test_what_is_not_given_has_the_default_that_the_readme_states(capsys, arguments, operations):
    """256 for each extent of a product, 56x56 with 64 channels and filters of 3x3, 128 rows of 768; f16 and f32."""
    assert main(["generate", "--dry-run", "--default-config=only", *arguments]) == 0
    assert re.findall(r"/(\w+)\.mlir", capsys.readouterr().out) == operations


# -- completion ------------------------------------------------------------------------------------


Completions = Callable[[str], list[str]]


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """The completion script for `shell`; skips the test where that is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main([COMPLETION, shell]) == 0
    script = Path(f"completion.{shell}")
    script.write_text(capsys.readouterr().out)
    return script


@pytest.fixture
def bash(capsys) -> Completions:
    """`bash("dispatch-profiler profile --fo")`: what bash completes there."""
    return partial(bash_completions, script_for("bash", capsys))


@pytest.fixture
def fish(capsys) -> Completions:
    return partial(fish_completions, script_for("fish", capsys))


@pytest.fixture
def zsh(capsys) -> Callable[[str], str]:
    return partial(zsh_completes, script_for("zsh", capsys))


def options_of(name: str) -> set[str]:
    """Every spelling that --help-all shows."""
    parser = import_module(COMMANDS[name][0]).make_parser()
    return {
        option
        for action in parser._actions
        if "SUPPRESS" not in str(action.help)
        for option in action.option_strings
    }


def test_bash_completes_commands(bash):
    assert set(bash("dispatch-profiler ")) == {*COMMANDS, "--help", "--version"}
    assert bash("dispatch-profiler comp") == ["compile", "compare", COMPLETION]
    assert bash(f"dispatch-profiler {COMPLETION} ")[:3] == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("name", COMMANDS)
def test_bash_completes_every_option_of_a_command(bash, name: str):
    assert set(bash(f"dispatch-profiler {name} -")) == options_of(name)


def test_bash_completes_values(bash):
    assert bash("dispatch-profiler profile --format=") == ["blocks", "table", "json"]
    assert bash("dispatch-profiler profile --format t") == ["table"]
    assert bash("dispatch-profiler profile --verification-enabled=f") == ["false"]
    assert bash("dispatch-profiler profile --budget=") == []


def test_bash_completes_files(bash):
    Path("my.jsonl").touch()
    assert bash("dispatch-profiler report my") == ["my.jsonl"]
    assert bash("dispatch-profiler compile --bundle=my") == ["my.jsonl"]


def test_bash_completes_the_aliases(bash):
    assert bash("dispatch-compile --cache-i") == ["--cache-info"]
    assert bash("/usr/bin/dispatch-generator --dry") == ["--dry-run"]


def test_fish_completes_commands_options_values_and_files(fish):
    Path("my.jsonl").touch()
    assert set(COMMANDS) <= set(fish("dispatch-profiler "))
    assert set(fish("dispatch-profiler comp")) == {"compile", "compare", COMPLETION}
    assert fish(f"dispatch-profiler {COMPLETION} z") == ["zsh"]
    assert fish("dispatch-profiler profile --fo") == ["--format"]
    assert set(fish("dispatch-profiler profile --format=")) == {
        "--format=blocks",
        "--format=table",
        "--format=json",
    }
    assert fish("dispatch-profiler report my") == ["my.jsonl"]
    assert fish("dispatch-compile --cache-i") == ["--cache-info"]


@pytest.mark.parametrize("name", COMMANDS)
def test_fish_completes_every_option_of_a_command(fish, name: str):
    offered = {option.rstrip("=") for option in fish(f"dispatch-profiler {name} --")}
    assert {option for option in options_of(name) if option.startswith("--")} <= offered


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("dispatch-profiler gene", "dispatch-profiler generate "),
        ("dispatch-profiler comp", "dispatch-profiler comp"),
        ("dispatch-profiler completion z", "dispatch-profiler completion zsh "),
        ("dispatch-profiler profile --for", "dispatch-profiler profile --format="),
        ("dispatch-profiler profile --format=t", "dispatch-profiler profile --format=table "),
        ("dispatch-profiler report my", "dispatch-profiler report my.jsonl "),
        ("dispatch-profiler compile --bundle=my", "dispatch-profiler compile --bundle=my.jsonl "),
        ("dispatch-compile --cache-i", "dispatch-compile --cache-info "),
    ],
)
def test_zsh_completes_what_is_unambiguous(zsh, line: str, completed: str):
    Path("my.jsonl").touch()
    assert zsh(line) == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_every_option(capsys, shell: str):
    """Where the shell is installed, it also reads the script."""
    assert main([COMPLETION, shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        long = [option for option in options_of(name) if option.startswith("--")]
        spelled = [f"-l {option[2:]} " if shell == "fish" else f"'{option}" for option in long]
        assert name in script and all(each in script for each in spelled)
    if shutil.which(shell):
        Path("script").write_text(script)
        assert called(shell, "-n", "script").returncode == 0


def test_a_script_for_a_shell_changes_with_the_parsers(capsys, monkeypatch):
    """It is made from them: an option that is added is completed."""
    from dispatch_profiler.profiler import cli

    make = cli.make_parser

    def with_more(prog: str = "profiler.py"):
        parser = make(prog)
        parser.add_argument("--brand-new", action="store_true")
        return parser

    monkeypatch.setattr(cli, "make_parser", with_more)
    main([COMPLETION, "bash"])
    assert " --brand-new" in capsys.readouterr().out


def test_the_help_imports_no_command():
    """It comes at once, also where a command lacks what it needs."""
    program = (
        "import sys; from dispatch_profiler.__main__ import main; main([]); print(*sys.modules, sep='\\n')"
    )
    modules = called(sys.executable, "-c", program).stdout.splitlines()
    assert "dispatch_profiler.__main__" in modules
    assert not {"numpy", "iree", "rich", *(module for module, _ in COMMANDS.values())} & set(modules) - {
        "dispatch_profiler.__main__"
    }


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
    """Every option that takes a value, by the spellings that are shown: others stand for the same actions."""
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


def test_a_switch_takes_no_separator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "--quiet=--"]) == USAGE
    assert "takes no value, but got '--'" in capsys.readouterr().err


def test_an_unknown_option_is_named_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "a", "b", "c", "--missing=--"]) == USAGE
    assert "unrecognized arguments: --missing=--\n" in capsys.readouterr().err
