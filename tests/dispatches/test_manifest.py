"""The record beside a tree: read back as written, refused when damaged, shared by processes."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import (
    Artifact,
    Dispatch,
    DispatchEntry,
    Manifest,
    ModuleEntry,
    OperationEntry,
    Selection,
    State,
    Tree,
    add_generated,
    fold_journal,
    load_manifest,
    manifest,
    note_result,
)
from dispatch_profiler.errors import SelectionError, TreeError
from dispatch_profiler.files import regular as files
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.targets import NullTarget

ROOT = Path(__file__).parents[2]
TILES = CpuTiles((8, 16), (4, 8, 1), cache=(4, 8, 2), peel=True, split_k=2)


def generated(operation: Operation, source: str = "a", target: str = "null") -> OperationEntry:
    dispatches = [Dispatch(operation, c) for c in (Default(), Default(2), TILES, Flow("ukernels"))]
    return OperationEntry(operation, target, source, tuple(map(DispatchEntry, dispatches)))


def compiled(entry: OperationEntry) -> OperationEntry:
    """`entry` with every state that there is, a whole module and one that did not compile."""
    states = (
        (State.COMPILED, "", "#iree_cpu.lowering_config<>"),
        (State.NOT_COMPILED, 'error: "quoted"\nand a second line → end', ""),
        (State.NOT_APPLIED, "the compiler chose otherwise", "other"),
        (State.GENERATED, "", ""),
    )
    return replace(
        entry,
        dispatches=tuple(
            DispatchEntry(d.dispatch, *state) for d, state in zip(entry.dispatches, states, strict=True)
        ),
        modules=(
            ModuleEntry("", "key", 100, "IREE 3.13", entry.target, Artifact("v", 10), Artifact("p", 20)),
            ModuleEntry("ukernels", "other key", 1, "IREE 3.13", entry.target, None, None),
        ),
    )


EVERY_OPERATION = (
    Matmul(8, 16, 4),
    Matmul(8, 16, 4, ElementTypes("f8", "f8", "f32"), "n", "t", Epilogue.parse("bias+gelu")),
    BatchMatmul(2, 8, 16, 4, ElementTypes("i8", "i8", "i32")),
    Conv2d(1, 8, 9, 4, 8, 3, 2, (2, 1), (1, 0), (1, 2), 2, "nchw", epilogue=Epilogue.parse("bias")),
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


# -- round trip ------------------------------------------------------------------------------------


def test_a_manifest_is_read_as_it_was_written(tree):
    """Operations, configurations, states, reasons and artifacts, in their order."""
    entries = tuple(compiled(generated(operation)) for operation in EVERY_OPERATION)
    add_generated(tree, entries)
    assert load_manifest(tree) == Manifest(tree, entries)


def test_an_empty_manifest_is_one(tree):
    """A tree of which nothing was generated yet."""
    add_generated(tree, [])
    assert load_manifest(tree).entries == ()


def test_the_dispatches_of_a_manifest_come_in_order(tree):
    """Each with the operation that it is of."""
    manifest = Manifest(tree, tuple(map(generated, EVERY_OPERATION)))
    pairs = list(manifest.dispatches())
    assert [entry.operation for entry, _ in pairs] == [op for op in EVERY_OPERATION for _ in range(4)]
    assert all(d.dispatch.operation == entry.operation for entry, d in pairs)


def test_the_family_of_a_tree_is_that_of_its_targets(tree):
    """Whatever their detail is; targets of two families are damage."""
    entries = [generated(op, target=t) for op, t in zip(EVERY_OPERATION, ("null", "null:x"), strict=False)]
    assert Manifest(tree, tuple(entries)).family == "null"
    mixed = Manifest(tree, (*entries, generated(EVERY_OPERATION[2], target="llvm-cpu")))
    with pytest.raises(TreeError, match="llvm-cpu"):
        _ = mixed.family


def test_the_target_of_a_tree_is_that_of_its_first_operation(tree):
    """Any member of the family will do; of two families, or of nothing, there is none."""
    entries = [generated(op, target=t) for op, t in zip(EVERY_OPERATION, ("null:x", "null"), strict=False)]
    assert Manifest(tree, tuple(entries)).target == NullTarget("x")
    for wrong in ((*entries, generated(EVERY_OPERATION[2], target="vmvx")), ()):
        with pytest.raises(TreeError, match="several target families or none"):
            _ = Manifest(tree, wrong).target


def test_a_selection_chooses_among_the_dispatches(tree):
    """By kind and name, each with the operation that it is of."""
    manifest = Manifest(tree, tuple(map(generated, EVERY_OPERATION)))
    chosen = manifest.choose(Selection(("*_default",), ("conv2d", "batch_matmul")))
    assert [(e.operation, d.dispatch.configuration) for e, d in chosen] == [
        (op, Default()) for op in EVERY_OPERATION[2:]
    ]
    with pytest.raises(SelectionError, match="no dispatch matches 'nothing'"):
        manifest.choose(Selection(("nothing",)))


def test_a_dispatch_is_in_the_module_of_its_flags():
    """In none until that is compiled."""
    entry = compiled(generated(EVERY_OPERATION[0]))
    by_name = {d.dispatch.configuration.name: entry.module_of(d.dispatch) for d in entry.dispatches}
    assert by_name["tile_config_default"] is by_name[TILES.name] is entry.modules[0]
    assert by_name["flow_config_ukernels"] is entry.modules[1]
    assert generated(EVERY_OPERATION[0]).module_of(entry.dispatches[0].dispatch) is None


def test_the_file_says_what_it_is(tree):
    """JSON for other tools: format, version, one operation a line, names for people."""
    add_generated(tree, map(generated, EVERY_OPERATION[:2]))
    data = json.loads(tree.manifest.read_text())
    assert (data["format"], data["version"]) == ("dispatch_profiler manifest", 2)
    assert [row["name"] for row in data["operations"]] == [op.name for op in EVERY_OPERATION[:2]]
    assert data["operations"][0]["dispatches"][0]["name"].endswith("_tile_config_default")
    assert len(tree.manifest.read_text().splitlines()) == 4


# -- damage ----------------------------------------------------------------------------------------


def rejection(tree: Tree, message: str) -> TreeError:
    with pytest.raises(TreeError, match=message) as caught:
        load_manifest(tree)
    return caught.value


def test_a_folder_that_is_missing_is_said(tree):
    """With the next step."""
    error = rejection(tree, f"there is no folder {tree.folder}")
    assert error.hint == "give the folder that holds generated/"


def test_a_tree_that_was_not_generated_is_said(tree):
    """With its path and the next step."""
    tree.folder.mkdir()
    error = rejection(tree, f"no generated tree in .*: {tree.manifest} is missing")
    assert error.hint == "run generator.py with the same --generated-dir first"


DAMAGED = {
    "empty": (b"", "is damaged: not JSON: Expecting value"),
    "cut off": (
        b'{"format": "dispatch_profiler manifest", "version": 1, "operati',
        "is damaged: not JSON: Unterminated",
    ),
    "not text": (b"\xff\xfe\x00", "is damaged: .*can't decode"),
    "nested without end": (b"[" * 100_000, "is damaged|is not a manifest"),
    "foreign": (b'{"format": "something else"}', "is not a manifest of dispatch_profiler"),
    "foreign list": (b"[1, 2]", "is not a manifest of dispatch_profiler"),
    "foreign text": (b'"dispatch_profiler manifest"', "is not a manifest of dispatch_profiler"),
    "new version": (
        b'{"format": "dispatch_profiler manifest", "version": 3, "operations": []}',
        "has version 3, but this program reads 1 to 2",
    ),
    "no version": (b'{"format": "dispatch_profiler manifest"}', "has version None"),
    "no operations": (b'{"format": "dispatch_profiler manifest", "version": 1}', "is damaged: .*operations"),
    "operations of another type": (
        b'{"format": "dispatch_profiler manifest", "version": 1, "operations": {"a": 1}}',
        "is damaged: ",
    ),
}


@pytest.mark.parametrize(("data", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_not_ours_is_refused(tree, data, message):
    """With its path, what is wrong, and what to do."""
    files.write_atomic(tree.manifest, data)
    error = rejection(tree, f"{tree.manifest} ({message})")
    assert error.hint.startswith(f"remove {tree.manifest} and run generator.py and compile.py again")


def test_a_manifest_that_cannot_be_read_is_refused(tree, monkeypatch):
    """The system's reason is told."""
    files.write_atomic(tree.manifest, "{}")
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "denied")))
    rejection(tree, f"cannot read {tree.manifest}: denied")


@pytest.mark.parametrize("name", ["manifest", "journal"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_rejected_without_waiting_for_it(tree, name, make):
    add_generated(tree, [generated(EVERY_OPERATION[0])])
    path = getattr(tree, name)
    path.unlink(missing_ok=True)
    make(path)
    rejection(tree, f"cannot read {path}: it is a (named pipe|directory), not a regular file")


def written(tree: Tree) -> dict[str, Any]:
    add_generated(tree, [compiled(generated(EVERY_OPERATION[3]))])
    return json.loads(tree.manifest.read_text())


def place(data: dict[str, Any], path: tuple[str | int, ...]) -> Any:
    """What lies at `path` in the first operation of a manifest."""
    return functools.reduce(operator.getitem, path, data["operations"][0])


def test_a_module_of_an_earlier_manifest_was_compiled_for_the_target_of_its_operation(tree):
    """Earlier manifests, and lines of their journals, name one target for the whole operation."""
    data = written(tree)
    for module in data["operations"][0]["modules"]:
        del module["target"]
    data["operations"][0]["target"] = "null:x"
    files.write_atomic(tree.manifest, json.dumps(data))

    (entry,) = load_manifest(tree).entries

    assert {m.target for m in entry.modules} == {"null:x"}


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ((), ("target", "source_sha256", "dispatches", "modules")),
        (("operation",), ("kind", "n", "k", "types", "epilogue")),
        (("dispatches", 2, "configuration"), ("kind", "distribution", "vector")),
        (("modules", 0), ("name",)),
    ],
    ids=str,
)
def test_a_missing_key_is_refused(tree, path, keys):
    """Each of them, by its name."""
    for key in keys:
        data = written(tree)
        del place(data, path)[key]
        files.write_atomic(tree.manifest, json.dumps(data))
        rejection(tree, f"the manifest {tree.manifest} is damaged: .*('{key}'|{key}: missing)")
        tree.manifest.unlink()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("dispatches", 0, "state"), "perhaps", "state: 'perhaps' is not one of generated, compiled"),
        (("dispatches", 0, "reason"), None, "reason: expected a string, but got None"),
        (("dispatches", 0, "is_transient"), 1, "is_transient: expected true or false, but got 1"),
        (("modules", 0, "repeat"), -5, "repeat: expected a whole number from 1 to 1000000, but got -5"),
        (("modules", 0, "repeat"), "often", "repeat: expected a whole number"),
        (("modules", 0, "repeat"), 10**400, "repeat: .* an integer beyond 64 bits"),
        (("modules", 0, "key"), None, "key: expected a string"),
        (("modules", 0, "flags"), "-O2", "flags: expected a list"),
        (("modules", 0, "verify"), {"sha256": "x"}, "verify.bytes: missing"),
    ],
)
def test_a_damaged_entry_makes_its_dispatches_not_compiled_and_no_other(tree, path, value, message):
    """The reason names the field and the next step."""
    data = written(tree)
    place(data, path[:-1])[path[-1]] = value
    files.write_atomic(tree.manifest, json.dumps(data))

    (entry,) = load_manifest(tree).entries

    damaged = [d for d in entry.dispatches if "is damaged" in d.reason]
    assert {d.state for d in damaged} == {State.NOT_COMPILED}
    assert re.search(rf"{message}.*run compile\.py again", damaged[0].reason)
    assert [d.dispatch for d in damaged] == [
        d.dispatch for d in entry.dispatches[:3] if path[0] == "modules" or d is entry.dispatches[0]
    ]


def test_a_module_that_no_configuration_names_is_left_out(tree):
    """Its name would be a path that the file's writer chose."""
    data = written(tree)
    data["operations"][0]["modules"][0]["name"] = "../../elsewhere"
    files.write_atomic(tree.manifest, json.dumps(data))
    assert [m.name for m in load_manifest(tree).entries[0].modules] == ["ukernels"]


def test_a_manifest_of_version_1_is_read(tree):
    data = written(tree)
    for module in data["operations"][0]["modules"]:
        del module["flags"]
    files.write_atomic(tree.manifest, json.dumps({**data, "version": 1}))
    (entry,) = load_manifest(tree).entries
    assert {m.flags for m in entry.modules} == {()}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("operation", "kind"), "no_kind", "unknown operation kind 'no_kind'"),
        (("operation", "n"), 0, "every extent must be at least 1"),
        (("operation", "n"), "1", "every extent must be at least 1"),
        (("operation", "n"), None, "every extent must be at least 1"),
        (("operation", "types"), ["f32", "f16", "i32"], "f32 and f16 inputs need a floating-point result"),
        (("operation", "depth"), 3, "depth"),
        (("dispatches", 0, "configuration", "kind"), "magic", "unknown configuration kind 'magic'"),
        (("dispatches", 0, "configuration"), "default", "configuration: expected an object"),
        (("dispatches", 3, "configuration", "flow"), "ukernel", "unknown flow 'ukernel'"),
        (("dispatches", 2, "configuration", "vector"), [1], "vector needs a tile"),
        (("dispatches", 2, "configuration", "vector"), [[1], [2]], "configuration: "),
        (("dispatches", 2, "configuration", "split_k"), 10**400, "configuration: expected numbers"),
        (("operation", "n"), 10**400, "operation: expected numbers, but got an integer beyond 64 bits"),
        (("operation",), None, "operation: expected an object, but got None"),
        (("dispatches",), 7, "dispatches: expected a list, but got 7"),
        (("modules", 0), None, "modules: expected an object, but got None"),
    ],
)
def test_a_wrong_value_is_refused(tree, path, value, message):
    """With the path of the file, what is wrong, and the next step."""
    data = written(tree)
    place(data, path[:-1])[path[-1]] = value
    files.write_atomic(tree.manifest, json.dumps(data))
    error = rejection(tree, f"the manifest {tree.manifest} is damaged: .*{message}")
    assert "run generator.py and compile.py again" in error.hint


# -- updates ---------------------------------------------------------------------------------------


def test_an_update_leaves_the_others(tree):
    """What is new comes last, what is known keeps its place."""
    first, second, third = map(generated, EVERY_OPERATION[:3])
    add_generated(tree, [first, second])
    add_generated(tree, [third, replace(first, source_sha256="b")])
    entries = load_manifest(tree).entries
    assert [e.operation for e in entries] == [e.operation for e in (first, second, third)]
    assert [e.source_sha256 for e in entries] == ["b", "a", "a"]


def test_a_snapshot_spares_reading_but_hides_nothing(tree, monkeypatch):
    """What another process wrote after the snapshot was taken stays in the manifest."""
    first, second, third = map(generated, EVERY_OPERATION[:3])
    last = add_generated(tree, [first])
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "load_manifest", None)
        last = add_generated(tree, [second], last)
    note_result(tree, compiled(first))
    last = add_generated(tree, [], last)
    add_generated(tree, [third])
    add_generated(tree, [replace(second, source_sha256="b")], last)
    entries = load_manifest(tree).entries
    assert entries == (compiled(first), replace(second, source_sha256="b"), third)


def test_a_result_is_put_beside_what_others_put_there(tree):
    """Two who read the same manifest lose nothing of each other."""
    first, second = map(generated, EVERY_OPERATION[:2])
    add_generated(tree, [first, second])
    note_result(tree, compiled(first))
    note_result(tree, compiled(second))
    assert load_manifest(tree).entries == (compiled(first), compiled(second))


def test_results_of_two_modules_of_one_operation_are_put_together(tree):
    """The process that compiled one of them read the manifest before the other was done."""
    entry = generated(EVERY_OPERATION[0])
    add_generated(tree, [entry])
    whole = compiled(entry)
    for module in reversed(whole.modules):
        members = tuple(d for d in whole.dispatches if d.dispatch.configuration.module == module.name)
        note_result(tree, replace(whole, dispatches=members, modules=(module,)))

    (found,) = load_manifest(tree).entries
    assert found.dispatches == whole.dispatches
    assert set(found.modules) == set(whole.modules)


def test_the_journal_is_folded_into_the_manifest(tree):
    """Then it is gone, and what it held is there for other tools."""
    entry = generated(EVERY_OPERATION[0])
    add_generated(tree, [entry])
    note_result(tree, compiled(entry))
    before = load_manifest(tree)

    fold_journal(tree)

    assert not tree.journal.exists()
    assert load_manifest(tree) == before
    assert "not compiled" in tree.manifest.read_text() or "compiled" in tree.manifest.read_text()
    fold_journal(tree)  # nothing to do is no error
    assert load_manifest(tree) == before


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_half_a_line_of_a_killed_writer_costs_only_itself(tree, cut):
    first, second = map(generated, EVERY_OPERATION[:2])
    add_generated(tree, [first, second])
    note_result(tree, compiled(first))
    line = tree.journal.read_text().strip()
    tree.journal.write_text(f"\n{line[:cut]}")

    note_result(tree, compiled(second))

    assert load_manifest(tree).entries == (first, compiled(second))


def test_a_result_of_a_source_that_was_generated_anew_is_dropped(tree):
    """It is of another text."""
    old, new = generated(EVERY_OPERATION[0], "old"), generated(EVERY_OPERATION[0], "new")
    add_generated(tree, [new])
    note_result(tree, compiled(old))
    assert load_manifest(tree).entries == (new,)


def test_a_result_of_what_is_no_longer_there_is_dropped(tree):
    """A result adds no operation."""
    add_generated(tree, [generated(EVERY_OPERATION[0])])
    note_result(tree, compiled(generated(EVERY_OPERATION[1])))
    assert [e.operation for e in load_manifest(tree).entries] == [EVERY_OPERATION[0]]


def test_a_failure_in_the_middle_leaves_the_old_manifest(tree, monkeypatch):
    """Whole, with no temporary file beside it and no lock held."""
    add_generated(tree, [generated(EVERY_OPERATION[0])])
    before = tree.manifest.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
        with pytest.raises(OSError, match="no space"):
            add_generated(tree, [generated(EVERY_OPERATION[1])])
    assert tree.manifest.read_bytes() == before
    assert not list(tree.folder.rglob("*.tmp"))
    add_generated(tree, [generated(EVERY_OPERATION[1])])
    assert len(load_manifest(tree).entries) == 2


def test_a_damaged_manifest_is_not_written_over(tree):
    """The user may want to repair it."""
    files.write_atomic(tree.manifest, "damaged")
    with pytest.raises(TreeError, match="is damaged"):
        add_generated(tree, [generated(EVERY_OPERATION[0])])
    assert tree.manifest.read_text() == "damaged"


WRITER = """
import sys
from pathlib import Path
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import *
from dispatch_profiler.operations import Matmul
tree, first = Tree(Path(sys.argv[1])), int(sys.argv[2])
sys.stdin.readline()
for m in range(first, first + 10):
    operation = Matmul(m, 1, 1)
    entry = OperationEntry(operation, "null", "a", (DispatchEntry(Dispatch(operation, Default())),))
    add_generated(tree, [entry])
"""


def test_four_processes_lose_nothing_of_each_other(tree):
    """Each adds ten operations, one at a time, at the same time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tree.folder), str(first)],
            stdin=subprocess.PIPE, text=True, env=environment,
        )
        for first in (1, 11, 21, 31)
    ]  # fmt: skip
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        with writer:
            pass
        assert writer.returncode == 0
    assert {entry.operation.m for entry in load_manifest(tree).entries} == set(range(1, 41))
