"""`compile --library`: tuned configurations beside the compiler's default, in modules of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from library_samples import HERE, OTHER, entry

from dispatch_profiler.compiler import IreeCompiler, NullCompiler
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed, Tuned
from dispatch_profiler.dispatches import (
    Dispatch,
    DispatchEntry,
    OperationEntry,
    State,
    Tree,
    load_manifest,
    note_result,
    set_added,
)
from dispatch_profiler.library import Entry, Library
from dispatch_profiler.library.tuned import SimilarEntries
from dispatch_profiler.operations import BatchMatmul, Conv2d, Matmul, Operation

SMALL, LARGE = (Matmul(m, 32, 8) for m in (16, 64))
SWEEP = ("--problem-m=16,64", "--problem-n=32", "--problem-k=8", "--lhs=f32")
NULL = replace(HERE, target="null", iree=f"compiler {NullCompiler().revision}, runtime 3.13.0", flags=())
FIT = CpuTiles((16, 32), (8, 32, 4))

in_process = pytest.mark.usefixtures("in_process")


def save(*entries: Entry, to: str = "tuned") -> str:
    Path(to).mkdir(exist_ok=True)
    Library(entries).save(Path(to))
    return f"--library={to}"


def tuned_entry(operation: Operation = SMALL, configuration: Configuration = FIT, origin=NULL) -> Entry:
    return entry(operation, configuration=configuration, origin=origin)


def tuned_dispatches() -> dict[Operation, tuple[OperationEntry, DispatchEntry]]:
    """Operation -> its entry and that of its tuned dispatch."""
    pairs = load_manifest(Tree(Path())).dispatches()
    return {e.operation: (e, d) for e, d in pairs if isinstance(d.dispatch.configuration, Tuned)}


def files(pattern: str = "generated/linalg/**/*") -> dict[str, bytes]:
    """Generated and compiled files, without the manifest, which changes."""
    paths = (path for path in Path().glob(pattern) if path.is_file() and "manifest" not in path.name)
    return {str(path): path.read_bytes() for path in paths}


@pytest.fixture
def tree(run, null_tree) -> Callable[..., Path]:
    """Two products on the null target, compiled."""
    path: Path = null_tree("--target=null", *SWEEP)
    return path


# -- end to end ------------------------------------------------------------------------------------


@in_process
def test_a_tuned_configuration_is_compiled_verified_measured_and_compared(run, tree):
    """Also with extra columns that say what it is."""
    outcome = run("compile", save(tuned_entry())).checked()
    assert "tuned: entries for 1 of 2 operations; 1 left to the compiler\n" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("19 dispatches: 19 compiled; 18 were up to date")

    assert run("profiler", "--output=run.csv", "--columns=all", "--dispatches=*_tuned,*_default").status == 0
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    found = {row["dispatch"]: row for row in rows}
    assert set(found) == {f"{SMALL.name}_tile_config_tuned", *(f"{o.name}_tile_config_default" for o in (SMALL, LARGE))}  # fmt: skip
    row = found[f"{SMALL.name}_tile_config_tuned"]
    assert row["verdict"] == "SUCCESS"
    assert row["configuration_fields"]["tuned"] == FIT.name
    assert row["configuration_fields"]["tuned_from"] == ""
    assert FIT.name in Path("run.csv").read_text()
    outcome = run("profiler", "--dispatches=*_tuned,*_default")
    assert f"Tuned         : {FIT.name}\n" in outcome.out
    outcome = run("profiler", "--dispatches=*_tuned,*_default", "--format=table")
    assert f"tuned: {FIT.name}\n" in outcome.out


@in_process
def test_no_file_of_another_configuration_changes(run, tree):
    """Neither source nor vmfbs; they are not even written again."""
    before, times = files(), {name: Path(name).stat().st_mtime_ns for name in files()}
    run("compile", save(tuned_entry()))
    after = files()
    assert {name: after[name] for name in before} == before
    assert {name: Path(name).stat().st_mtime_ns for name in before} == times
    kind = f"generated/linalg/matmul/{SMALL.name}"
    made = (f"{SMALL.name}_tuned.mlir", f"{SMALL.name}_tuned_verify.vmfb", f"{SMALL.name}_tuned_profile.vmfb")
    made += ("iree_compile_cmd_stdout_tuned.mlir",)
    assert set(after) - set(before) == {f"{kind}/{name}" for name in made}


@in_process
def test_a_second_run_compiles_nothing(run, tree):
    option = save(tuned_entry())
    run("compile", option)
    before = files()
    for arguments in ((option,), ()):
        assert "; 0 were up to date" not in run("compile", *arguments, "--no-cache").err
        assert files() == before
        assert tuned_dispatches()[SMALL][1].state is State.COMPILED


@in_process
def test_another_library_replaces_the_configurations_of_the_first(run, tree):
    """Its operations too: one without an entry has no tuned configuration any more, and no files of it."""
    run("compile", save(tuned_entry()))
    run("compile", save(tuned_entry(LARGE, OTHER), to="second"))
    ((operation, (_, dispatch)),) = tuned_dispatches().items()
    assert (operation, dispatch.dispatch.configuration) == (LARGE, Tuned(OTHER))
    assert [name for name in files() if "tuned" in name and SMALL.name in name] == []

    run("compile", save(tuned_entry(LARGE, FIT), to="third"))
    entry_of, dispatch = tuned_dispatches()[LARGE]
    assert dispatch.dispatch.configuration == Tuned(FIT)
    assert (dispatch.state, dispatch.applied) == (
        State.COMPILED,
        FIT.lowering(LARGE).lowering_config,  # type: ignore[union-attr]
    )
    assert [m.name for m in entry_of.modules].count("tuned") == 1


@in_process
def test_an_empty_library_changes_nothing_else(run, tree):
    before = files()
    outcome = run("compile", save()).checked()
    assert "tuned: entries for 0 of 2 operations; 2 left to the compiler\n" in outcome.err
    assert (files(), tuned_dispatches()) == (before, {})


@in_process
def test_operations_generated_again_keep_it_until_their_source_changes(run, tree):
    """Then it is removed with its files, as every module is."""
    run("compile", save(tuned_entry()))
    run("generator", "--target=null", *SWEEP)
    assert tuned_dispatches()[SMALL][1].state is State.COMPILED
    run("generator", "--target=null", *SWEEP, "--default-config=only")
    assert tuned_dispatches() == {}
    assert [name for name in files() if "tuned" in name] == []


@in_process
def test_a_bundle_has_it(run, tree):
    run("compile", save(tuned_entry()), "--bundle=out.zip")
    run("profiler", "--bundle=out.zip", "--dispatches=*_tuned", "--output=run.csv").checked()
    assert "SUCCESS" in Path("run.csv").read_text()


# -- what cannot be used ---------------------------------------------------------------------------


@in_process
@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        (HERE, "tune for this target"),
        (
            replace(NULL, iree="compiler 3.12.0, runtime 3.12.0"),
            "prove its entries again with this compiler: dispatch-profiler library prove foreign",
        ),
    ],
    ids=["another target", "another compiler"],
)
def test_a_library_for_another_target_or_compiler_is_rejected(run, tree, origin, hint):
    """Nothing changes, not even what another library has added."""
    run("compile", save(tuned_entry()))
    before = files()
    outcome = run("compile", save(tuned_entry(origin=origin), to="foreign")).checked(2)
    assert f"its entries were measured for {origin.target} with {origin.iree}" in outcome.err
    assert f"hint: {hint}\n" in outcome.err
    assert files() == before
    assert SMALL in tuned_dispatches()


@in_process
def test_entries_for_another_target_are_left_out_of_a_mixed_library(run, tree):
    outcome = run("compile", save(tuned_entry(), tuned_entry(LARGE, origin=HERE))).checked()
    assert "1 entry of tuned cannot be used:" in outcome.err
    assert "measured for llvm-cpu with" in outcome.err
    assert set(tuned_dispatches()) == {SMALL}


@in_process
@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        (CpuTiles((16, 32, 1), (8, 32, 4, 1)), "matmul takes 2 distribution and 3 vector tiles"),
        (Formed("taps"), "is for convolutions, not matmul"),
    ],
)
def test_an_invalid_entry_affects_no_other(run, tree, configuration, reason):
    """It has a reason, and the exit status tells."""
    outcome = run("compile", save(tuned_entry(configuration=configuration), tuned_entry(LARGE))).checked(1)
    assert f"{configuration.name}: " in outcome.err
    assert reason in outcome.err
    assert set(tuned_dispatches()) == {LARGE}


@in_process
def test_a_tuned_configuration_is_not_tuned_again(run, tree):
    """In a library that was written by hand."""
    outcome = run("compile", save(tuned_entry(configuration=Tuned(FIT)))).checked(1)
    assert "tile_config_tuned: tile_config_tuned cannot be tuned again" in outcome.err


@in_process
def test_a_damaged_entry_affects_no_other(run, tree):
    save(tuned_entry(), tuned_entry(LARGE))
    (file,) = Path("tuned").glob("*/product.json")
    file.write_text(file.read_text().replace('"distribution": [16, 32]', '"distribution": [0, 32]', 1))
    outcome = run("compile", "--library=tuned").checked(1)
    assert "every tile must be a whole number of at least 1" in outcome.err
    assert len(tuned_dispatches()) == 1


def test_a_library_that_does_not_exist_is_an_error(run, tree):
    assert "missing" in run("compile", "--library=missing").checked(2).err


def test_nearest_needs_a_library(run, tree):
    outcome = run("compile", "--nearest")
    assert (outcome.status, "--nearest needs --library" in outcome.err) == (2, True)


def test_a_result_of_a_replaced_configuration_is_obsolete(run, tree):
    """Two runs with other libraries at once: what the first compiled is never recorded for the second's."""
    run("compile", save(tuned_entry()))
    compiled, dispatch = tuned_dispatches()[SMALL]
    late = replace(
        compiled, dispatches=(dispatch,), modules=tuple(m for m in compiled.modules if m.name == "tuned")
    )
    set_added(Tree(Path()), {SMALL: Dispatch(SMALL, Tuned(OTHER))})
    note_result(Tree(Path()), late)
    found, dispatch = tuned_dispatches()[SMALL]
    assert dispatch.state is State.GENERATED
    assert [m.name for m in found.modules if m.name == "tuned"] == []


# -- the nearest shape -----------------------------------------------------------------------------


@in_process
def test_an_operation_without_an_entry_gets_that_of_the_nearest_shape(run, tree):
    """And says which that is."""
    outcome = run("compile", save(tuned_entry()), "--nearest").checked()
    assert "entries for 1 of 2 operations, of similar shapes for 1; 0 left to the compiler" in outcome.err
    assert f"{LARGE.name}  as {SMALL.name}" in outcome.err
    assert tuned_dispatches()[LARGE][1].dispatch.configuration == Tuned(FIT, tuned_from=SMALL.name)
    outcome = run("profiler", f"--dispatches={LARGE.name}_*_tuned", "--format=table")
    assert f"tuned: {FIT.name}, as {SMALL.name}" in outcome.out


def nearest_of(operation: Operation, others: Sequence[Operation]) -> list[Operation]:
    similar = SimilarEntries(entry(each, configuration=Default()) for each in others)
    return [each.operation for each in similar.of(operation)]


def test_the_nearest_shape_has_the_smallest_ratios():
    far, near, nearer = Matmul(4096, 64, 64), Matmul(128, 128, 64), Matmul(128, 64, 64)
    assert nearest_of(Matmul(64, 64, 64), [far, near, nearer]) == [nearer, near, far]


def test_equally_distant_shapes_come_in_the_order_of_their_names():
    others = [Matmul(64, 64, 129), Matmul(64, 129, 64), Matmul(129, 64, 64)]
    assert nearest_of(Matmul(64, 64, 64), others) == nearest_of(Matmul(64, 64, 64), others[::-1])
    assert nearest_of(Matmul(64, 64, 64), others)[0] == Matmul(129, 64, 64)


def test_similar_shapes_have_the_same_types_layouts_and_epilogue():
    one = Matmul(64, 64, 64)
    others = [
        BatchMatmul(2, 64, 64, 64),
        replace(Matmul(128, 64, 64), rhs_layout="n"),
        replace(Matmul(128, 64, 64), epilogue=type(one.epilogue).parse("bias")),
    ]
    assert nearest_of(one, others) == []


def test_depthwise_convolutions_are_not_similar_to_dense_ones():
    dense, depthwise = Conv2d(1, 16, 16, 32, 32, 3, 3), Conv2d(1, 16, 16, 32, 32, 3, 3, groups=32)
    assert nearest_of(dense, [depthwise]) == []
    assert nearest_of(dense, [Conv2d(1, 32, 32, 32, 32, 3, 3)]) == [Conv2d(1, 32, 32, 32, 32, 3, 3)]


@in_process
def test_the_nearest_shape_whose_configuration_is_valid_is_taken(run, tree):
    """A split into 5 slices does not divide k = 8."""
    near, far = Matmul(64, 32, 5), Matmul(512, 512, 64)
    run("compile", save(tuned_entry(near, Default(5)), tuned_entry(far)), "--nearest")
    assert tuned_dispatches()[LARGE][1].dispatch.configuration == Tuned(FIT, tuned_from=far.name)


# -- flags and identity ----------------------------------------------------------------------------


def test_extra_flags_are_those_of_neither_target_nor_configuration():
    own = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-data-tiling", "--iree-opt-level=O3")
    found = entry(configuration=Flow("data_tiling"), origin=replace(HERE, flags=own))
    assert found.extra_flags == ("--iree-opt-level=O3",)


@in_process
def test_a_tuned_configuration_is_kept_as_what_it_was_tuned_to(run, tree):
    """A library of records of `tile_config_tuned` can be used again."""
    from library_samples import default, record

    from dispatch_profiler.library import choose

    flags = ("--iree-opt-level=O3",)
    origin = replace(NULL, flags=flags)
    records = [
        default(origin=origin),
        record(Tuned(FIT, flags), operation=default().dispatch.operation, origin=origin),
    ]
    (choice,) = choose(records)
    assert choice.entry is not None
    assert choice.entry.dispatch.configuration == FIT
    assert choice.entry.extra_flags == flags


# -- with IREE -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuned_tiles_are_applied_by_the_compiler(run):
    """Read from its IR, and the default's vmfbs stay as they are."""
    operation = Matmul(64, 64, 64)
    tiles = CpuTiles((32, 32), (8, 16, 4))
    arguments = ("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32", "--default-config=only")
    assert run("generator", *arguments).status == 0
    assert run("compile").status == 0
    before = files()
    iree = f"compiler {IreeCompiler().revision}, runtime 3.13.0"
    option = save(tuned_entry(operation, tiles, replace(HERE, iree=iree, flags=())))
    run("compile", option).checked()
    dispatch = tuned_dispatches()[operation][1]
    assert dispatch.state is State.COMPILED
    assert "[32, 32, 0]" in dispatch.applied
    assert "[8, 16, 0]" in dispatch.applied
    after = files()
    assert {name: after[name] for name in before} == before

    flow = tuned_entry(
        operation, Flow("data_tiling"), replace(HERE, iree=iree, flags=("--iree-opt-level=O2",))
    )
    assert run("compile", save(flow, to="flows")).status == 0
    found, dispatch = tuned_dispatches()[operation]
    assert dispatch.state is State.COMPILED
    module = found.module_of(dispatch.dispatch)
    assert module is not None
    assert module.flags[-2:] == ("--iree-opt-data-tiling", "--iree-opt-level=O2")
    assert {name: files()[name] for name in before} == before
