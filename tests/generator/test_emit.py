"""A plan becomes files and a manifest, also if it is stopped, and again without losing anything."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, ListedConfiguration
from dispatch_profiler.dispatches import (
    Dispatch,
    ModuleEntry,
    OperationEntry,
    State,
    Tree,
    add_generated,
    load_manifest,
    note_result,
)
from dispatch_profiler.errors import TargetError, TreeError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.generator import Choices, Plan, emit, plan_generation, render_module
from dispatch_profiler.operations import BatchMatmul, Conv2d, Matmul, Operation
from dispatch_profiler.targets import CpuTarget, NullTarget, Target
from dispatch_profiler.workloads import WorkloadEntry, merged

MATMUL, BATCH, CONV = Matmul(16, 32, 8), BatchMatmul(2, 16, 32, 8), Conv2d(1, 8, 8, 4, 8, 3, 3)
TILES = CpuTiles((16, 32), (4, 8, 2))


def plan(
    *operations: Operation,
    configurations: tuple[Configuration, ...] = (TILES,),
    target: Target = NullTarget(),
) -> Plan:
    workload = merged([WorkloadEntry(operation) for operation in operations])
    return plan_generation(workload, target, Choices([ListedConfiguration(c) for c in configurations]))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def states(tree: Tree) -> dict[Operation, set[State]]:
    return {e.operation: {d.state for d in e.dispatches} for e in load_manifest(tree).entries}


def compile_everything(tree: Tree) -> None:
    """What a compiler would put into the manifest."""
    for entry in load_manifest(tree).entries:
        note_result(tree, as_compiled(entry))


def as_compiled(entry: OperationEntry) -> OperationEntry:
    dispatches = tuple(replace(d, state=State.COMPILED, applied="yes") for d in entry.dispatches)
    return replace(
        entry, dispatches=dispatches, modules=(ModuleEntry("", "key", 1, "IREE", entry.target, None, None),)
    )


def files_of(tree: Tree) -> dict[str, bytes]:
    return {str(p.relative_to(tree.folder)): p.read_bytes() for p in tree.folder.rglob("*") if p.is_file()}


# -- writing ---------------------------------------------------------------------------------------


def test_every_operation_gets_its_file(tree):
    """Each is announced with its dispatches, in the order of the plan, when it is written."""
    planned = plan(MATMUL, CONV)
    for (path, dispatches), (operation, expected) in zip(emit(planned, tree), planned.groups, strict=True):
        assert (path, dispatches) == (tree.source(operation), expected)
        assert path.read_text() == render_module(operation, dispatches)


def test_the_manifest_holds_what_was_written(tree):
    """The target, the hash of the text, and every dispatch as generated."""
    planned = plan(MATMUL, CONV, target=CpuTarget("znver4"))
    list(emit(planned, tree))
    for entry, (operation, dispatches) in zip(load_manifest(tree).entries, planned.groups, strict=True):
        assert (entry.operation, entry.target, entry.modules) == (operation, "llvm-cpu:znver4", ())
        assert entry.source_sha256 == sha256(tree.source(operation).read_bytes())
        assert [(d.dispatch, d.state) for d in entry.dispatches] == [(d, State.GENERATED) for d in dispatches]


def test_two_trees_of_one_plan_are_equal_byte_for_byte(tmp_path):
    """Nothing of time, place or chance is in a tree."""
    planned = plan(MATMUL, BATCH, CONV)
    trees = Tree(tmp_path / "a"), Tree(tmp_path / "b")
    for tree in trees:
        list(emit(planned, tree))
    assert files_of(trees[0]) == files_of(trees[1])
    assert len(files_of(trees[0])) == 3 + 2  # manifest and lock


def test_nothing_temporary_is_left(tree):
    """Only sources, manifest and lock."""
    list(emit(plan(MATMUL), tree))
    names = [MATMUL.name + ".mlir", ".manifest.lock", "manifest.json"]
    assert sorted(Path(name).name for name in files_of(tree)) == sorted(names)


# -- again -----------------------------------------------------------------------------------------


def test_the_same_again_keeps_what_was_compiled(tree):
    """And touches no source."""
    list(emit(plan(MATMUL, CONV), tree))
    compile_everything(tree)
    before = load_manifest(tree)
    os.utime(tree.source(MATMUL), (1, 1))
    list(emit(plan(MATMUL, CONV), tree))
    assert load_manifest(tree) == before
    assert tree.source(MATMUL).stat().st_mtime == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"configurations": ()},
        {"configurations": (TILES, CpuTiles((16, 16), (4, 4, 1)))},
        {"configurations": (replace(TILES, distribution=(8, 32)),)},
        {"target": NullTarget("other")},
    ],
    ids=["fewer", "more", "others", "target"],
)
def test_another_list_or_target_resets_the_operation(tree, changed):
    """What was compiled was of another text, or for another machine."""
    list(emit(plan(MATMUL), tree))
    compile_everything(tree)
    list(emit(plan(MATMUL, **changed), tree))
    assert states(tree) == {MATMUL: {State.GENERATED}}
    (entry,) = load_manifest(tree).entries
    assert entry.source_sha256 == sha256(tree.source(MATMUL).read_bytes())
    assert entry.modules == ()


def test_operations_that_are_not_in_the_plan_stay(tree):
    """With what was compiled of them, and in their place."""
    list(emit(plan(MATMUL, CONV), tree))
    compile_everything(tree)
    list(emit(plan(BATCH), tree))
    assert states(tree) == {MATMUL: {State.COMPILED}, CONV: {State.COMPILED}, BATCH: {State.GENERATED}}
    assert tree.source(MATMUL).exists()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_text("func.func @"),
        lambda path: path.write_bytes(b"\xff"),
        replace_by_pipe,
    ],
    ids=["gone", "cut", "no text", "pipe"],
)
def test_a_source_that_was_damaged_is_written_again(tree, damage):
    """`run generator.py again` is the way out that errors name."""
    list(emit(plan(MATMUL), tree))
    whole = tree.source(MATMUL).read_text()
    damage(tree.source(MATMUL))
    list(emit(plan(MATMUL), tree))
    assert tree.source(MATMUL).read_text() == whole


def test_a_directory_in_place_of_a_source_is_refused(tree):
    list(emit(plan(MATMUL), tree))
    tree.source(MATMUL).unlink()
    tree.source(MATMUL).mkdir()
    with pytest.raises(TreeError, match=r"cannot write .*: Is a directory"):
        list(emit(plan(MATMUL), tree))


def test_a_manifest_that_was_lost_is_made_again(tree):
    """Sources stay as they are."""
    list(emit(plan(MATMUL), tree))
    before = files_of(tree)
    tree.manifest.unlink()
    list(emit(plan(MATMUL), tree))
    assert files_of(tree) == before


def test_what_a_compiler_finishes_meanwhile_is_kept(tree):
    """Generating and compiling may run side by side."""
    list(emit(plan(MATMUL, CONV), tree))
    again = emit(plan(MATMUL, CONV), tree)
    next(again)
    compile_everything(tree)
    list(again)
    assert states(tree) == {MATMUL: {State.COMPILED}, CONV: {State.COMPILED}}


FLOWS = tuple(Flow(name) for name in ("data_tiling", "ukernels"))


def make_files(tree: Tree) -> None:
    """What compiling everything, and keeping reproducers of it, leaves beside the sources."""
    for entry, d in load_manifest(tree).dispatches():
        made = tree.made_of(entry.operation, d.dispatch.configuration.module)
        for path in (*made, tree.reproducer(entry.operation, d.dispatch.name)):
            path.parent.mkdir(exist_ok=True)
            path.touch()


def test_files_of_a_dispatch_that_is_dropped_go_with_it(tree):
    """Nothing would name them: vmfbs, what the compiler said, reproducers. All others stay."""
    list(emit(plan(MATMUL, BATCH, configurations=(TILES, *FLOWS)), tree))
    make_files(tree)
    before = set(files_of(tree))

    list(emit(plan(MATMUL, configurations=FLOWS[:1]), tree))

    gone = {Path(name).name for name in before - set(files_of(tree))}
    ukernels = [f"{MATMUL.name}_ukernels_{purpose}.vmfb" for purpose in ("verify", "profile")]
    reproducers = [f"{Dispatch(MATMUL, dropped).name}.mlir" for dropped in (TILES, FLOWS[1])]
    assert gone == {*ukernels, "iree_compile_cmd_stdout_ukernels.mlir", *reproducers}


def test_files_go_also_if_the_operation_was_not_compiled_since(tree):
    """Twice another list: the manifest has forgotten the vmfbs after the first."""
    list(emit(plan(MATMUL, configurations=(TILES, *FLOWS)), tree))
    make_files(tree)
    list(emit(plan(MATMUL, configurations=FLOWS), tree))

    list(emit(plan(MATMUL, configurations=()), tree))

    vmfbs = sorted(path.name for path in tree.folder.rglob("*.vmfb"))
    assert vmfbs == [f"{MATMUL.name}_profile.vmfb", f"{MATMUL.name}_verify.vmfb"]


# -- stopped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, ZeroDivisionError])
def test_what_was_written_before_a_stop_is_in_the_manifest(tree, error):
    """Whatever stopped the caller."""

    def stop_after_two() -> None:
        for count, _ in enumerate(emit(plan(MATMUL, BATCH, CONV), tree), 1):
            if count == 2:
                raise error

    with pytest.raises(error):
        stop_after_two()
    assert list(states(tree)) == [MATMUL, BATCH]
    assert not tree.source(CONV).exists()


def test_a_write_that_fails_leaves_the_others(tree, monkeypatch):
    """What came before it is in the manifest, and no half of it lies there."""
    replace_file = os.replace

    def fail(source: object, to: object) -> None:
        if str(to).endswith(f"{BATCH.name}.mlir"):
            raise OSError(28, "no space")
        replace_file(source, to)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        list(emit(plan(MATMUL, BATCH, CONV), tree))
    assert list(states(tree)) == [MATMUL]
    assert not list(tree.folder.rglob("*.tmp"))


def test_a_run_that_is_killed_leaves_a_manifest_of_most_that_was_written(tree):
    """It is written while operations are, and only these are in it."""
    operations = [Matmul(m, 8, 8) for m in range(1, 101)]
    killed = emit(plan(*operations), tree)
    for _ in range(60):
        next(killed)
    known = list(states(tree))
    assert known == operations[: len(known)]
    assert 30 <= len(known) <= 60
    assert all(tree.source(operation).exists() for operation in known)
    killed.close()
    assert list(states(tree)) == operations[:60]


def test_ctrl_c_while_a_file_is_written_keeps_those_before_it(tree, monkeypatch):
    def interrupted(operation: object, dispatches: object) -> str:
        if operation == CONV:
            raise KeyboardInterrupt
        return render_module(operation, dispatches)

    module = importlib.import_module("dispatch_profiler.generator.emit")  # `emit` is its function
    monkeypatch.setattr(module, "render_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(emit(plan(MATMUL, BATCH, CONV), tree))
    assert list(states(tree)) == [MATMUL, BATCH]


def test_ctrl_c_while_the_manifest_is_written_keeps_everything(tree, monkeypatch):
    """A large one takes seconds to write, so that it is likely to come then."""
    module = importlib.import_module("dispatch_profiler.generator.emit")
    interrupts = [KeyboardInterrupt]

    def interrupted_once(*arguments: object) -> None:
        if interrupts:
            raise interrupts.pop()
        add_generated(*arguments)

    monkeypatch.setattr(module, "add_generated", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        list(emit(plan(MATMUL, BATCH), tree))
    assert list(states(tree)) == [MATMUL, BATCH]


def test_the_next_run_goes_on(tree):
    """A stop costs nothing of what was done."""
    interrupted = emit(plan(MATMUL, CONV), tree)
    next(interrupted)
    interrupted.close()
    compile_everything(tree)
    list(emit(plan(MATMUL, CONV), tree))
    assert states(tree) == {MATMUL: {State.COMPILED}, CONV: {State.GENERATED}}


# -- refused ---------------------------------------------------------------------------------------


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    """It stays as it is."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(TreeError, match="file is a file, not a folder"):
        list(emit(plan(MATMUL), Tree(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("at", ["generated", "generated/linalg"])
def test_a_file_in_place_of_a_folder_below_is_refused(tree, at):
    """With its path, as a request that cannot be met."""
    blocker = tree.folder / at
    blocker.parent.mkdir(parents=True)
    blocker.write_text("precious")
    with pytest.raises(TreeError, match=str(blocker)):
        list(emit(plan(MATMUL), tree))
    assert blocker.read_text() == "precious"


def test_a_damaged_manifest_stops_before_anything_is_written(tree):
    """It is not written over, and no source is."""
    tree.root.mkdir(parents=True)
    tree.manifest.write_text("damaged")
    with pytest.raises(TreeError, match="is damaged"):
        list(emit(plan(MATMUL), tree))
    assert tree.manifest.read_text() == "damaged"
    assert not tree.source(MATMUL).exists()


def test_a_tree_is_for_one_family_of_targets(tree):
    """Another member of the family may add to it, another family not."""
    list(emit(plan(MATMUL, target=CpuTarget()), tree))
    list(emit(plan(BATCH, target=CpuTarget("znver4")), tree))
    before = files_of(tree)
    with pytest.raises(TargetError, match="is for llvm-cpu, not for null") as caught:
        list(emit(plan(CONV), tree))
    assert "another --generated-dir" in caught.value.hint
    assert files_of(tree) == before


def test_an_empty_default_plan_is_the_default(tree):
    """Without a list every operation has its default."""
    list(emit(plan(MATMUL, configurations=()), tree))
    ((_, only),) = load_manifest(tree).dispatches()
    assert only.dispatch.configuration == Default()
