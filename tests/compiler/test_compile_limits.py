"""What the compiler hangs on, crashes on or cannot find room for costs itself and can be tried again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.command import FAILED
from dispatch_profiler.compiler import Progress
from dispatch_profiler.compiler.console import CompileTally, report
from dispatch_profiler.compiler.workers import pool
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch, DispatchEntry, State, Tree, load_manifest
from dispatch_profiler.operations import Matmul

SHAPE = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")


@pytest.fixture
def faulty(run):
    """`faulty("crash")`: a null tree in which one tile does that to the compiler."""

    def make(fault: str) -> None:
        Path("faults.yaml").write_text(f'"*_64x128_8x32x4": {{compiler: {fault}}}\n"*": {{}}\n')
        assert run("generator", "--target=null:faults.yaml", *SHAPE).status == 0

    return make


def entries() -> dict[str, DispatchEntry]:
    found = (d for _, d in load_manifest(Tree(Path())).dispatches())
    return {d.dispatch.configuration.name.removeprefix("tile_config_"): d for d in found}


def the_only(state: State) -> DispatchEntry:
    (found,) = (d for d in entries().values() if d.state is state)
    return found


def the_failed() -> DispatchEntry:
    return the_only(State.NOT_COMPILED)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("fault", "reason", "who"),
    [
        ("crash", "killed by SIGABRT", "--retry"),
        ("hang", "the compiler gave no answer within 2 s", "--retry"),
        ("memory", "out of memory: simulated by the null compiler", "the next run"),
    ],
)
def test_it_costs_itself_and_none_of_its_module(run, faulty, monkeypatch, fault: str, reason: str, who: str):
    faulty(fault)
    # What hangs is waited for: its module has few dispatches, and no more time than one of them.
    monkeypatch.setattr(pool, "_FURTHER_SECONDS", 0.0)
    few = ["--timeout=2", "--dispatches=*_64x128_8x32x4,*_4x16x1"] if fault == "hang" else []

    outcome = run("compile", "-j1", *few).checked(1)
    assert f"  1 x  not compiled  {reason}\n" in outcome.err
    assert f"{who} compiles 1 of these again: 1 x {reason}\n" in outcome.err
    assert the_failed().reason == reason
    assert the_failed().is_transient
    assert [d.state for d in entries().values()].count(State.COMPILED) > 0


def test_the_summary_gives_the_reasons_of_what_retry_compiles_again(capsys):
    """Without Triton nothing ran out of time: its reason says which package to install."""
    missing = "Triton kernels need triton: python -m pip install 'triton>=3.9'"
    dispatch = Dispatch(Matmul(16, 32, 8), Default())
    failed = [DispatchEntry(dispatch, State.NOT_COMPILED, missing, is_transient=True)] * 10
    refused = DispatchEntry(dispatch, State.NOT_COMPILED, "error: no such tile")
    done = Progress(dispatch.operation, "", (*failed, refused), kept=True)

    assert report([done], CompileTally(11)) == FAILED

    assert f"--retry compiles 10 of these again: 10 x {missing}\n" in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_not_tried_again_unasked(run, faulty):
    faulty("crash")
    run("compile", "-j1")
    every = len(entries())

    again = run("compile", "-j1").checked(1)
    assert f"{every} were up to date" in again.err
    assert "[Compiling]" not in again.err


@pytest.mark.slow
def test_retry_compiles_the_modules_of_what_failed_so(run, faulty):
    faulty("crash")
    run("compile", "-j1")
    flows = sum(bool(d.dispatch.configuration.module) for d in entries().values())

    outcome = run("compile", "-j1", "--retry").checked(1)
    assert f"{flows} were up to date" in outcome.err
    assert outcome.err.count("[Compiling]") == 1


def test_a_refusal_is_no_matter_of_luck(run, faulty):
    """What the compiler says no to is not tried again by --retry."""
    Path("faults.yaml").write_text('"*_64x128_8x32x4": {not_compiled: no such tile}\n')
    run("generator", "--target=null:faults.yaml", *SHAPE)
    run("compile", "-j1")

    outcome = run("compile", "-j1", "--retry")

    assert "[Compiling]" not in outcome.err
    assert "--retry" not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "compiled"), [("crash", 0), ("memory", 1)])
def test_another_tree_finds_what_the_compiler_crashed_on_but_not_what_lacked_memory(
    run, faulty, fault: str, compiled: int
):
    faulty(fault)
    run("compile", "-j1")
    run("generator", "--generated-dir=other", "--target=null:faults.yaml", *SHAPE)

    outcome = run("compile", "-j1", "--generated-dir=other")

    assert outcome.err.count("[Compiling]") == compiled
    assert "from the cache" in outcome.err


@pytest.mark.slow
def test_what_ran_out_of_time_is_kept_for_as_much_time(run, faulty, monkeypatch):
    """Another tree finds it, unless it has more time."""
    faulty("hang")
    monkeypatch.setattr(pool, "_FURTHER_SECONDS", 0.0)
    few = "--dispatches=*_64x128_8x32x4,*_4x16x1"
    run("compile", "-j1", "--timeout=0.5", few)
    for folder, seconds in (("same", 0.5), ("more", 0.6)):
        run("generator", f"--generated-dir={folder}", "--target=null:faults.yaml", *SHAPE)

        outcome = run("compile", "-j1", f"--timeout={seconds}", f"--generated-dir={folder}", few)

        assert f"1 x  not compiled  the compiler gave no answer within {seconds} s" in outcome.err
        assert outcome.err.count("[Compiling]") == (folder == "more")


@pytest.mark.slow
def test_what_lacked_memory_is_compiled_again_unasked(run, faulty):
    """Nothing need be done but to run it again: the rest of its module is compiled with it."""
    faulty("memory")
    assert run("compile", "-j1").status == 1
    assert the_failed().is_tried_again

    again = run("compile", "-j1")

    assert again.err.count("[Compiling]") == 1
    assert "1 x  not compiled  out of memory" in again.err


def test_a_memory_limit_reaches_the_compiler(run):
    """One MiB beyond what is mapped at its start is too little for any compiler: one sentence says so."""
    Path("none.yaml").write_text("configurations: []\n")
    assert run("generator", *SHAPE, "--configurations=none.yaml").status == 0

    outcome = run("compile", "-j1", "--no-cache", "--memory-limit=1").checked(1)
    assert "the compiler failed before it read its flags: " in outcome.err
    assert "a low --memory-limit is another possible cause" in outcome.err
    assert the_only(State.GENERATED)
    assert run("compile", "-j1", "--no-cache", "--memory-limit=8192").status == 0


# -- reproducers -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reproducer_is_kept_on_request(run, faulty):
    faulty("crash")
    run("compile", "-j1")
    assert not list(Path("generated").rglob("reproducers"))

    run("compile", "-j1", "--retry", "--keep-reproducers")

    (file,) = Path("generated").rglob("reproducers/*")
    name = the_failed().dispatch.name
    assert file.name == f"{name}.mlir"
    reason, command, *text = file.read_text().splitlines()
    assert reason == "// killed by SIGABRT"
    assert command.startswith("// iree-compile ")
    assert sum("func.func" in line for line in text) == 1
    assert f"@{name}(" in text[0]


def test_a_reproducer_goes_when_its_dispatch_compiles(run, faulty):
    """Whether or not reproducers are asked for then."""
    faulty("crash")
    run("compile", "-j1", "--keep-reproducers")
    assert list(Path("generated").rglob("reproducers/*"))

    Path("faults.yaml").write_text("{}")
    assert run("compile", "-j1").status == 0

    assert not list(Path("generated").rglob("reproducers/*"))


# -- a terminal ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "columns", [80, *(pytest.param(each, marks=pytest.mark.slow) for each in (120, 200))]
)
def test_no_line_on_a_terminal_is_wider_than_it_or_than_120_columns(run, columns: int):
    """Names of convolutions are 90 columns wide, reasons still wider."""
    reason = "no such tile, " * 20
    Path("faults.yaml").write_text(f'"*_default": {{not_compiled: {reason!r}}}\n')
    conv = ("--conv-n=1", "--conv-h=56", "--conv-w=56", "--conv-c=64", "--conv-k=64", "--conv-padding=1")
    run("generator", "--target=null:faults.yaml", "--op-kind=conv2d", "--lhs=f32", *conv)

    _, shown = on_a_terminal(columns, "compile.py", "-j1", "--no-cache")

    lines = [line for line in re.split(r"[\r\n]+", plain(shown)) if line.strip()]
    assert sum(line.startswith("[Compiling]: conv2d") or "conv2...1_g1" in line for line in lines) == 1
    assert max(map(len, lines)) <= min(columns, 120)


@pytest.mark.slow
def test_an_operation_is_named_once_a_module_and_no_path_is_printed(run, faulty):
    faulty("crash")

    err = run("compile", "-j1", "--no-cache").err

    assert "generated" not in err
    assert [line.count("matmul_16x32x8") for line in err.splitlines() if "[Compiling]" in line] == [1, 1, 1]


def test_an_interrupt_tells_how_much_is_done(run, faulty, capsys):
    dispatch = Dispatch(Matmul(16, 32, 8), Default())

    def results() -> Iterator[Progress]:
        yield Progress(dispatch.operation, "", (DispatchEntry(dispatch, State.COMPILED),), kept=False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report(results(), CompileTally(11))

    assert capsys.readouterr().err.endswith("done: 1 of 11 dispatches\n")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, pytest.param(120, marks=pytest.mark.slow)])
def test_a_terminal_shows_a_bar_and_only_what_went_wrong(faulty, columns: int):
    faulty("crash")

    status, shown = on_a_terminal(columns, "compile.py", "-j1", "--no-cache")

    assert status == 1
    assert "Traceback" not in shown
    said = plain(shown)
    assert "Compiling" in said
    assert "failed" in said
    assert "killed by SIGABRT" in " ".join(said.split())
    assert said.count("[Compiling]:") == 1  # of three modules


@pytest.mark.slow
def test_without_a_terminal_each_module_is_a_plain_line(run, faulty):
    faulty("crash")

    err = run("compile", "-j1", "--no-cache").err

    assert "\x1b" not in err
    lines = [line for line in err.splitlines() if line.startswith("[Compiling]:")]
    assert len(lines) == 3
    assert all(re.search(r"\[\d+ of \d+, [\d.]+/s, [\d:-]+ left\]$", line) for line in lines)
