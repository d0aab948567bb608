"""Compiling a tree does what is left to do, and keeps what it did."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from dispatch_profiler.compiler import (
    BuildError,
    BuildRequest,
    Built,
    CompileOptions,
    NullCompiler,
    artifact_of,
    compile_tree,
    repeat_count,
)
from dispatch_profiler.dispatches import Manifest, Selection, State, Tree, load_manifest
from dispatch_profiler.errors import SelectionError, TargetError, UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import parse_target

NULL = NullCompiler()

pytestmark = pytest.mark.usefixtures("in_process")


def load() -> Manifest:
    return load_manifest(Tree(Path()))


def compiled(**options: object) -> list[tuple[str, bool]]:
    """(configuration module, was it kept) of each module that a run dealt with."""
    return [(p.module, p.kept) for p in compile_tree(load(), NULL, CompileOptions(**options))]


def states() -> set[State]:
    return {d.state for _, d in load().dispatches()}


def vmfbs() -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(Path("generated").rglob("*.vmfb"))}


@pytest.fixture
def tree(run) -> Tree:
    assert (
        run(
            "generator", "--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32"
        ).status
        == 0
    )
    return Tree(Path())


def test_every_module_gets_its_two_vmfbs(tree: Tree):
    compiled()

    operation = load().entries[0].operation
    modules = {"", "_data_tiling", "_ukernels"}
    assert set(vmfbs()) == {f"{operation.name}{m}_{p}.vmfb" for m in modules for p in ("verify", "profile")}
    assert states() == {State.COMPILED}


def test_the_file_of_the_compilers_output_is_there_if_it_printed_nothing(tree: Tree):
    """Document 004 lists it in the folder of each operation."""
    compiled()
    compiled(force=True)
    operation = load().entries[0].operation
    assert [tree.compiler_output(operation, m).read_text() for m in ("", "data_tiling", "ukernels")] == [
        ""
    ] * 3


def test_an_unchanged_tree_is_kept(tree: Tree):
    compiled()
    before = vmfbs()

    assert all(kept for _, kept in compiled())
    assert vmfbs() == before


def test_force_compiles_again(tree: Tree):
    compiled()

    assert not any(kept for _, kept in compiled(force=True))


@pytest.mark.parametrize(
    "change", [{"repeat": 3}, {"flags": ("--iree-opt-level=O1",)}], ids=["repeat count", "flags"]
)
def test_a_change_of_what_goes_in_compiles_again(tree: Tree, change: dict[str, object]):
    compiled()

    assert not any(kept for _, kept in compiled(**change))


def test_a_changed_tuning_spec_compiles_again(tree: Tree):
    """The flag is the same, and so is the process: it is the file that it names that has changed."""
    flags = ("--iree-codegen-tuning-spec-path=spec.mlir",)
    Path("spec.mlir").write_text("module {}")
    compiled(flags=flags)
    assert all(kept for _, kept in compiled(flags=flags))

    Path("spec.mlir").write_text("module { }")

    assert not any(kept for _, kept in compiled(flags=flags))


@pytest.mark.timeout(60)
def test_a_flag_that_names_a_pipe_is_rejected(tree: Tree):
    """The compiler would wait for its writer, once for each dispatch."""
    os.mkfifo("spec.mlir")

    with pytest.raises(UsageError, match=r"cannot read spec\.mlir: it is a named pipe, not a regular file"):
        compiled(flags=("--iree-codegen-tuning-spec-path=spec.mlir",))


def test_a_flag_that_is_too_long_for_a_path_is_a_flag(tree: Tree):
    assert not any(kept for _, kept in compiled(flags=("--features=" + "+x," * 3000,)))


def test_another_compiler_compiles_again(tree: Tree):
    compiled()

    class Newer(NullCompiler):
        revision = "null 2"

    assert not any(p.kept for p in compile_tree(load(), _importable(Newer), CompileOptions()))


def test_a_changed_source_compiles_again(tree: Tree):
    compiled()
    source = tree.source(load().entries[0].operation)
    source.write_text(source.read_text() + "// changed\n")

    assert not any(kept for _, kept in compiled())


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "removed"])
def test_a_damaged_vmfb_is_made_again(tree: Tree, damage: bytes | None):
    compiled()
    good = vmfbs()
    victim = next(Path("generated").rglob("*32t_verify.vmfb"))
    victim.unlink() if damage is None else victim.write_bytes(damage)

    assert sorted(compiled()) == [("", False), ("data_tiling", True), ("ukernels", True)]
    assert vmfbs() == good


def test_a_directory_in_place_of_a_vmfb_is_the_verdict_of_its_module_and_of_no_other(run, tree: Tree):
    compiled()
    victim = next(Path("generated").rglob("*32t_verify.vmfb"))
    victim.unlink()
    victim.mkdir()

    assert run("compile").status == 1

    said = {(d.dispatch.configuration.module, d.state, d.reason) for _, d in load().dispatches()}
    assert said == {
        ("", State.NOT_COMPILED, f"cannot write {victim}: it is a directory"),
        ("data_tiling", State.COMPILED, ""),
        ("ukernels", State.COMPILED, ""),
    }
    victim.rmdir()
    assert run("compile").status == 0
    assert states() == {State.COMPILED}


def test_only_the_selected_are_compiled(tree: Tree):
    assert compiled(selection=Selection(("*_default",))) == [("", False)]

    by_state = {d.dispatch.configuration.name: d.state for _, d in load().dispatches()}
    assert by_state.pop("tile_config_default") is State.COMPILED
    assert set(by_state.values()) == {State.GENERATED}


def test_a_later_selection_keeps_what_was_compiled_before(tree: Tree):
    """A vmfb holds all configurations of its module: the second run must not lose the first's."""
    compiled()

    compiled(selection=Selection(("*_default",)), force=True)

    functions = json.loads(next(Path("generated").rglob("*32t_verify.vmfb")).read_bytes())["functions"]
    assert len(functions) == sum(not d.dispatch.configuration.module for _, d in load().dispatches())


def test_nothing_selected_is_refused(tree: Tree):
    with pytest.raises(SelectionError, match="no dispatch matches 'nothing'"):
        compiled(selection=Selection(("nothing",)))


def test_another_family_of_targets_is_refused(tree: Tree):
    with pytest.raises(TargetError, match="was generated for null, not for llvm-cpu") as caught:
        compiled(target=parse_target("llvm-cpu"))

    assert "generator.py --target=llvm-cpu" in caught.value.hint


CPU = ("--target=llvm-cpu", "--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
#: Another member of the family; no compiler is asked.
ZEN = parse_target("llvm-cpu:znver4")


def test_a_module_that_is_compiled_for_another_target_leaves_those_of_the_others(run):
    """And keeps its own when it is compiled again without a target."""
    run("generator", *CPU)
    compiled()
    before = {m.name: m for m in load().entries[0].modules}

    compiled(target=ZEN, selection=Selection(("*_data_tiling",)))
    compiled()

    (entry,) = load().entries
    after = {m.name: m for m in entry.modules}
    assert entry.target == "llvm-cpu"
    assert {name for name in before if after[name] != before[name]} == {"data_tiling"}
    assert after["data_tiling"].target == ZEN.name
    for d in entry.dispatches:
        is_zen = d.dispatch.configuration.module == "data_tiling"
        assert entry.target_of(d.dispatch) == (ZEN.name if is_zen else "llvm-cpu")
    assert {t.name for t in load().targets} == {"llvm-cpu", ZEN.name}


def test_to_generate_again_is_to_compile_for_that_target_again(run):
    run("generator", *CPU)
    compiled(target=ZEN)
    assert load().entries[0].modules

    run("generator", *CPU)

    assert not load().entries[0].modules


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: None, "No such file or directory"),
        (os.mkfifo, "it is a named pipe, not a regular file"),
        (os.mkdir, "it is a directory, not a regular file"),
        (
            lambda path: path.write_bytes(b"\xff"),
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
    ],
    ids=["missing", "FIFO", "directory", "no text"],
)
def test_a_source_that_cannot_be_read_is_the_verdict_of_its_dispatches_and_of_no_other(
    run, tree: Tree, damage, reason
):
    compiled()
    run("generator", "--target=null", "--problem-m=8", "--problem-n=8", "--problem-k=8", "--lhs=f32")
    whole, other = load().entries
    path = tree.source(whole.operation)
    path.unlink()
    damage(path)

    compiled()

    entries = {entry.operation: entry.dispatches for entry in load().entries}
    said = {(d.state, d.reason) for d in entries[whole.operation]}
    assert said == {(State.NOT_COMPILED, f"cannot read {path}: {reason}: run generator.py again")}
    assert {d.state for d in entries[other.operation]} == {State.COMPILED}
    assert run("compile").status == 1

    if path.is_dir():
        path.rmdir()
    run("generator", "--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    compiled()
    assert states() == {State.COMPILED}


def test_what_does_not_compile_is_told_and_leaves_no_vmfb(tree: Tree):
    @dataclass(frozen=True)
    class Refuses(NullCompiler):
        def build(self, request: BuildRequest) -> Built:
            raise BuildError("no", diagnostics="all of it")

    compiled()
    list(compile_tree(load(), _importable(Refuses), CompileOptions(force=True)))

    assert states() == {State.NOT_COMPILED}
    assert vmfbs() == {}
    assert "all of it" in next(Path("generated").rglob("iree_compile_cmd_stdout.mlir")).read_text()


def _importable(kind: type) -> NullCompiler:
    """A stand-in that is built in this process: local classes do not cross a process border."""
    from unittest import mock

    mock.patch("dispatch_profiler.compiler.workers.pool.Worker", _InThisProcess).start()
    return kind()


class _InThisProcess:
    """A worker that is no process."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def call(self, function, *arguments, seconds=None):
        return function(*arguments)

    def said(self) -> str:
        return ""

    def kill(self) -> None: ...


@pytest.fixture(autouse=True)
def _unpatched():
    yield
    from unittest import mock

    mock.patch.stopall()


def test_an_interrupt_keeps_what_was_finished(tree: Tree, run):
    run("generator", "--target=null", "--problem-m=8,16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    results = compile_tree(load(), NULL, CompileOptions(selection=Selection(("*_default",))))
    next(results)
    results.close()

    finished = [d for _, d in load().dispatches() if d.state is State.COMPILED]
    assert len(finished) == 1


def test_the_next_run_does_only_what_is_left(tree: Tree):
    results = compile_tree(load(), NULL, CompileOptions())
    next(results)
    results.close()

    assert sorted(kept for _, kept in compiled()) == [False, False, True]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(Matmul(8, 8, 8), 100), (Matmul(512, 512, 512), 7), (Matmul(2560, 2560, 2560), 1)],
)
def test_small_operations_are_repeated_more_often(operation: Matmul, expected: int):
    """2e9 operations a call: 2 * 512**3 = 2.7e8 goes into it 7.45 times."""
    assert repeat_count(operation) == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(Matmul(512, 512, 512), 100), (Matmul(3456, 1024, 2048), 14), (Matmul(8192, 8192, 8192), 10)],
)
def test_on_a_gpu_no_call_is_of_few(operation: Matmul, expected: int):
    """2e11 operations a call: 2 * 3456 * 1024 * 2048 = 1.45e10 goes into it 13.8 times."""
    assert repeat_count(operation, on_gpu=True) == expected


def test_the_hash_of_a_file_that_is_not_there_is_none(tmp_path: Path):
    assert artifact_of(tmp_path / "nothing") is None
