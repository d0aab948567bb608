"""`compile.py` as its users meet it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree, load_manifest

in_process = pytest.mark.usefixtures("in_process")


@pytest.fixture
def generated(run):
    """`generated("--problem-m=8", faults=...)`: a tree on the null target that is not compiled."""

    def make(*arguments: str, faults: str = "") -> Path:
        target = "null"
        if faults:
            Path("faults.yaml").write_text(faults)
            target = "null:faults.yaml"
        shapes = arguments or ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
        assert run("generator", f"--target={target}", *shapes).status == 0
        return Path("generated/linalg/manifest.json")

    return make


def test_it_says_what_it_compiled(run, generated):
    generated()

    outcome = run("compile", "--generated-dir", "-j", "2").checked()
    assert "(data_tiling): 1 compiled" in outcome.err
    assert outcome.err.splitlines()[-1] == "9 dispatches: 9 compiled; 0 were up to date"


@in_process
def test_a_second_run_finds_all_up_to_date(run, generated):
    generated()
    run("compile")

    assert run("compile").err == "9 dispatches: 9 compiled; 9 were up to date\n"


@in_process
def test_reasons_are_counted_and_the_status_is_1(run, generated):
    generated(faults='"*_peel": {not_compiled: no such tile}\n"*_default": {not_applied: true}\n"*": {}\n')
    run(
        "generator",
        "--target=null:faults.yaml",
        "--problem-m=15",
        "--problem-n=32",
        "--problem-k=8",
        "--lhs=f32",
    )

    outcome = run("compile").checked(1)
    assert "  2 x  not compiled  no such tile\n" in outcome.err
    assert "x  not applied   requested the null compiler's choice, but configured nothing\n" in outcome.err


@in_process
def test_many_reasons_are_cut_short(run, generated):
    generated()
    run("generator", "--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8,16", "--lhs=f32")
    names = [d.dispatch.name for _, d in load_manifest(Tree(Path("."))).dispatches()]
    faults = "\n".join(f'"{name}": {{not_compiled: reason {i}}}' for i, name in enumerate(names[:12]))
    Path("faults.yaml").write_text(faults)

    outcome = run("compile", "--target=null:faults.yaml").checked(1)
    assert "and 2 other reasons; manifest.json holds the reason of each dispatch" in outcome.err


@in_process
def test_flags_behind_two_dashes_go_to_the_compiler(run, generated):
    generated()
    run("compile")

    outcome = run("compile", "--", "--iree-opt-level=O1")

    assert outcome.err.splitlines()[-1].endswith("0 were up to date")


@in_process
def test_the_batch_size_is_the_repeat_count_of_the_profile_vmfb(run, generated):
    generated()

    run("compile", "--batch-size=13")

    (profile,) = Path("generated").rglob("*32t_profile.vmfb")
    assert json.loads(profile.read_bytes())["repeat"] == 13


@in_process
def test_patterns_and_kinds_choose(run, generated):
    generated()

    outcome = run("compile", "--dispatches=*_default", "--op-kind=matmul")

    assert outcome.err.splitlines()[-1] == "1 dispatch: 1 compiled; 0 were up to date"


@in_process
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["--dispatches=matmul_16x32x8"],
            "no dispatch matches 'matmul_16x32x8'",
            "did you mean 'matmul_16x32x8_",
        ),
        (["--op-kind=matmull"], "unknown operation kind 'matmull'", "did you mean 'matmul'"),
        (["--op-kind=conv2d"], "no dispatch of conv2d", ""),
        (["--target=nul"], "unknown target 'nul'", "did you mean 'null'"),
        (["--target=llvm-cpu:znver44"], "unknown CPU 'znver44'", "did you mean 'znver4'"),
        (["--num-cpu=0"], "expected a whole number of at least 1, but got '0'", ""),
        (["--timeout=-1"], "expected a number above 0, but got '-1'", ""),
        (["--force"], "unrecognized arguments: --force", "did you mean '--force-compile'?"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(run, generated, arguments, message, hint):
    generated()

    outcome = run("compile", *arguments).checked(2)
    assert message in outcome.err.splitlines()[0]
    assert hint in outcome.err
    assert not list(Path("generated").rglob("*.vmfb"))


@in_process
def test_no_tree_names_the_next_step(run):
    outcome = run("compile").checked(2)
    assert "no generated tree in ." in outcome.err
    assert "run generator.py" in outcome.err


@in_process
def test_a_foreign_tree_is_refused(run, generated):
    generated().write_text('{"name": "something else"}')

    assert "is not a manifest of dispatch_profiler" in run("compile").err


@in_process
def test_a_build_directory_without_tools_is_refused(run, tmp_path: Path):
    run("generator", "--problem-m=8", "--problem-n=8", "--problem-k=8", "--lhs=f32")

    outcome = run("compile", f"--build-dir={tmp_path}").checked(2)
    assert "does not contain iree-compile" in outcome.err


def test_unknown_compiler_flags_are_refused_before_anything_is_compiled(run):
    run("generator", "--problem-m=8", "--problem-n=8", "--problem-k=8", "--lhs=f32")

    outcome = run("compile", "--", "--iree-no-such-flag=1").checked(2)
    assert "iree-compile rejected its flags: option not found: iree-no-such-flag" in outcome.err
    assert not list(Path("generated").rglob("*.vmfb"))


def test_a_flag_with_a_wrong_value_is_told_what_it_takes(run):
    run("generator", "--problem-m=8", "--problem-n=8", "--problem-k=8", "--lhs=f32")

    error, hint = run("compile", "--", "--iree-opt-level=O9").checked(2).err.splitlines()
    assert error.endswith("option parse error for: iree-opt-level=O9")
    assert "use O0/O1/O2/O3" in hint


@in_process
def test_faults_that_cannot_be_read_are_refused(run, generated):
    generated(faults='"*": {}\n')
    Path("faults.yaml").write_text('"*": {fault: explode}\n')

    assert "unknown fault 'explode'" in run("compile").checked(2).err


@pytest.mark.slow
@in_process
def test_five_bad_configurations_among_fifteen_cost_none_of_the_other_ten(run):
    """With the real compiler: five tiles whose initial zeros are a vector that it refuses."""
    good = [f"  - {{distribution: [{8 * i}, 64], vector: [8, 16, {k}]}}" for i in range(1, 6) for k in (1, 2)]
    bad = [f"  - {{distribution: [64, 256], vector: [8, 16, 1], cache: [64, 256, {k}]}}" for k in range(1, 6)]
    Path("fifteen.yaml").write_text("configurations:\n" + "\n".join([*bad, *good]))
    # A named CPU has no limits that we know of, so nothing is left out beforehand.
    generated = run(
        "generator", "--target=llvm-cpu:x86-64-v3", "--configurations=fifteen.yaml", "--lhs=f32",
        "--problem-m=64", "--problem-n=256", "--problem-k=64",
    )  # fmt: skip
    assert "Generated 16 dispatches" in generated.err

    assert "16 dispatches: 11 compiled, 5 not compiled" in run("compile").checked(1).err
    entries = load_manifest(Tree(Path())).entries[0].dispatches
    refused = {d.dispatch.configuration.cache for d in entries if d.state.value == "not compiled"}
    assert refused == {(64, 256, k) for k in range(1, 6)}


@pytest.mark.slow
@in_process
def test_a_build_directory_compiles_the_same_dispatches(run):
    """The wheel's commands stand in for someone's own build."""
    run(
        "generator",
        "--problem-m=16",
        "--problem-n=16",
        "--problem-k=16",
        "--lhs=f32",
        "--default-config=only",
    )

    outcome = run("compile", f"--build-dir={Path(sys.executable).parent}").checked()
    assert "1 compiled" in outcome.err
