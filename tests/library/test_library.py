"""Libraries: entries, flags, and what a library takes from a run."""

from __future__ import annotations

import gc
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_kind import EVERY_MODE
from library_samples import FIRST, HERE, OTHER, SECOND, THIRD, TILES, default, entry, record

from dispatch_profiler.compiler import IreeCompiler, NullCompiler, build_request, launch_flags
from dispatch_profiler.configurations import (
    FLOWS,
    CpuTiles,
    Default,
    Extern,
    Flow,
    Formed,
    Tuned,
    configuration_from_dict,
    needed_features,
    spaces,
)
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import ConfigurationError, UsageError
from dispatch_profiler.library import (
    Entry,
    Estimate,
    Library,
    choose,
    family_files,
    find_library,
    shipped_libraries,
)
from dispatch_profiler.library.tuned import TunedConfigurations, TunedLookup
from dispatch_profiler.operations import Conv2d, ElementTypes, LayerNorm, Matmul
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.records.speedup import SpeedupsOfRuns
from dispatch_profiler.targets import CpuTarget, HostCpu, missing_features, parse_target

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1))
EVERY = (
    entry(FIRST),
    entry(SECOND, configuration=OTHER, origin=replace(HERE, when="later", module_key="k2")),
    entry(CONVOLUTION, configuration=Formed("im2col", TILES)),
    entry(THIRD, configuration=Flow("data_tiling"), origin=replace(HERE, machine=Machine("B", 16))),
    replace(entry(LayerNorm(128, 768)), speedup=Estimate(2.0, 1.5, float("inf"))),
)


def test_what_is_written_is_read_back():
    """As a folder, and as one file."""
    index, file = Library(EVERY).save(Path("tuned")), Library(EVERY).save(Path("all.json"))
    assert (index, file) == (Path("tuned/library.json"), Path("all.json"))
    for path in (Path("tuned"), index, file):
        assert set(Library.load(path).entries) == set(EVERY)
    assert file.read_text() == Library.load(index).save(Path("again.json")).read_text()


def test_the_order_of_entries_does_not_change_the_file():
    one, other = Library(EVERY).save(Path("one.json")), Library(EVERY[::-1]).save(Path("other.json"))
    assert one.read_text() == other.read_text()
    names = [row["name"] for row in json.loads(one.read_text())["entries"]]
    assert names == sorted(names) and len(names) == len(EVERY)


def test_the_file_states_everything_in_plain_words():
    data = json.loads(Library([EVERY[2]]).save(Path("a.json")).read_text())
    (row,) = data["entries"]
    assert (data["format"], data["version"]) == ("dispatch_profiler library", 3)
    assert row["configuration"]["form"] == "im2col"
    assert row["operation"]["kind"] == "conv2d"
    assert row["flags"] == ["--iree-llvmcpu-target-cpu=host", "-O2"]
    assert (row["gflops"], row["speedup"]) == ([100.0, 90.0, 110.0], [2.0, 1.9, 2.1])
    assert (row["module_key"], row["when"]) == ("k1", "2026-11-22T10:00:00+00:00")
    origin = data["origins"][row["origin"]]
    assert (origin["target"], origin["iree"], origin["machine"]["cpu"]) == ("llvm-cpu", HERE.iree, "A")


def test_an_entry_is_found_by_its_operation():
    Library(EVERY).save(Path("tuned"))
    library = Library.load(Path("tuned"))
    assert library.find(CONVOLUTION) == EVERY[2]
    assert library.find(Matmul(1, 2, 3)) is None
    assert library.find(Matmul(64, 64, 32, ElementTypes("f16", "f16", "f32"))) is None
    assert (len(library), len(Library())) == (5, 0)


def test_an_entry_that_is_not_used_is_not_constructed(monkeypatch):
    """Finding one operation among many constructs that one."""
    Library(EVERY).save(Path("tuned"))
    made: list[str] = []
    read = family_files.entry_of
    monkeypatch.setattr(
        family_files, "entry_of", lambda row, origins: made.append(row["name"]) or read(row, origins)
    )
    library = Library.load(Path("tuned"))
    assert made == []
    library.find(SECOND)
    assert made == [SECOND.name]


def test_a_damaged_entry_does_not_affect_the_others():
    """Until it is used."""
    file = Library(EVERY).save(Path("tuned.json"))
    data = json.loads(file.read_text())
    at = next(at for at, row in enumerate(data["entries"]) if row["name"] == FIRST.name)
    data["entries"][at]["configuration"]["kind"] = "cpu_tile"
    file.write_text(json.dumps(data))
    library = Library.load(file)
    assert library.find(SECOND) == EVERY[1]
    for use in (lambda: library.find(FIRST), lambda: library.entries):
        with pytest.raises(UsageError, match=f"tuned.json, entry {at + 1} \\({FIRST.name}\\): .*'cpu_tile'"):
            use()


def test_only_entries_with_the_prefix_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library.load(Library(EVERY).save(Path("tuned")))
    parsed: list[str] = []
    parse = family_files.entry_of
    monkeypatch.setattr(
        family_files, "entry_of", lambda row, origins: (parsed.append(row["name"]), parse(row, origins))[1]
    )
    assert set(library.readable("conv2d_")) == {EVERY[2]}
    assert parsed == [CONVOLUTION.name]
    assert set(library.readable()) == set(EVERY)


def changed(**values: Any) -> None:
    """A library of one entry, in which these fields are others."""
    file = Library(EVERY[:1]).save(Path("tuned.json"))
    data = json.loads(file.read_text())
    data["entries"][0].update(values)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "matmul_1x1x1_f32t_f32t_f32t", f"name: expected {FIRST.name}, but got 'matmul_1x1x1"),
        ("gflops", [1, 2], "gflops: expected [value, low, high]"),
        ("gflops", [1.0, 2.0, 3.0], "gflops: expected 0 <= low <= value <= high"),
        ("gflops", [None, 0.0, 3.0], "gflops: expected three numbers"),
        ("speedup", [2.0, True, 3.0], "speedup: expected three numbers"),
        ("speedup", [10**400, 0, 10**400], "speedup: "),
        ("speedup", [float("nan"), 0, 1], "speedup: "),
        ("origin", "abc", "origin: 'abc' is not among the origins"),
        ("origin", 0, "origin: expected a string"),
        ("flags", "-O2", "flags: expected a list, but got '-O2'"),
        ("operation", {"kind": "matmull"}, "operation or configuration: unknown operation kind 'matmull'"),
        ("operation", {"kind": "matmul", "m": 10**30}, "operation: expected numbers"),
        ("configuration", [], "configuration: expected an object"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any, said: str):
    changed(**{field: value})
    with pytest.raises(UsageError) as raised:
        _ = Library.load(Path("tuned.json")).entries
    assert said in raised.value.message and "entry 1 (matmul_" in raised.value.message


def test_two_entries_of_one_operation_are_an_error():
    with pytest.raises(UsageError, match=f"{FIRST.name} has two entries"):
        Library([entry(FIRST), entry(FIRST, configuration=OTHER)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "expected an object"),
        ("{}", 'expected "format": "dispatch_profiler library"'),
        ('{"format": "dispatch_profiler library", "version": 4}', "unsupported version 4"),
        ('{"format": "dispatch_profiler library", "version": 1}', "entries: missing"),
        ('{"format": "dispatch_profiler library", "version": 1, "origins": [], "entries": [3]}', "entries: "),
        (
            '{"format": "dispatch_profiler library", "version": 1, "origins": [], "entries": [{}]}',
            "name: missing",
        ),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_another_file_is_no_library(text: str, said: str):
    Path("library.json").write_text(text)
    with pytest.raises(UsageError) as raised:
        Library.load(Path("."))
    assert said in raised.value.message and raised.value.message.startswith("library.json: not a library")


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(monkeypatch, enabled: bool):
    """Also if the file is no library."""
    seen: list[bool] = []
    parse = family_files.parse_json
    monkeypatch.setattr(family_files, "parse_json", lambda data: seen.append(gc.isenabled()) or parse(data))
    Library(EVERY).save(Path("tuned.json"))
    Path("library.json").write_text("{")
    (gc.enable if enabled else gc.disable)()
    try:
        _ = Library.load(Path("tuned.json")).entries
        with pytest.raises(UsageError):
            Library.load(Path("."))
        assert (gc.isenabled(), seen) == (enabled, [False, False])
    finally:
        gc.enable()


def test_a_library_that_is_missing_or_a_pipe():
    with pytest.raises(UsageError, match=r"cannot read missing/library\.json: No such file"):
        Library.load(Path("missing"))
    os.mkfifo("library.json")
    with pytest.raises(UsageError, match="named pipe"):
        Library.load(Path("."))


SMALL = Matmul(16, 32, 8)
FIT = CpuTiles((16, 32), (8, 32, 4))
NULL = replace(HERE, target="null", iree=f"compiler {NullCompiler().revision}, runtime 3.13.0", flags=())


def tuned_entry(**origin: object) -> Entry:
    return entry(SMALL, configuration=FIT, origin=replace(HERE, **origin))  # type: ignore[arg-type]


#: Flags of the compiler that run programs, load or write files, or print; and values that are none of an allowed flag.
REFUSED = (
    "--iree-hal-preprocess-executables-with=tool",
    "--iree-hal-executable-object-search-path=.",
    "--iree-hal-dump-executable-files-to=x",
    "--iree-hal-dump-executable-configurations-to=x",
    "--iree-llvmcpu-system-linker-path=tool",
    "--iree-llvmcpu-embedded-linker-path=tool",
    "--iree-llvmcpu-wasm-linker-path=tool",
    "--iree-llvmcpu-link-embedded=false",
    "--iree-llvmcpu-link-static=true",
    "--iree-llvmcpu-static-library-output-path=x",
    "--iree-llvmcpu-keep-linker-artifacts",
    "--iree-llvmcpu-enable-ukernels=tool",
    "--iree-plugin=x",
    "--iree-load-plugin=x",
    "--iree-preprocessing-pass-pipeline=builtin.module(cse)",
    "--iree-preprocessing-pdl-spec-filename=x",
    "--iree-codegen-tuning-spec-path=spec.mlir",
    "--iree-codegen-transform-dialect-library=x",
    "--iree-opt-level=3",
    "--iree-opt-level=O9",
    "--iree-opt-level=O3 --iree-plugin=x",
    "--iree-opt-level=O3\n",
    "--iree-opt-data-tiling=",
    "--iree-llvmcpu-target-cpu-features=/etc/passwd",
    "--iree-llvmcpu-target-cpu-features=+a,",
    "--iree-llvmcpu-target-cpu-features",
    "--mlir-print-ir-after-all",
    "--iree-x=/etc/passwd",
    "-O3=x",
    "-Os",
    "-o",
    "--",
    "@file",
    "file.mlir",
    "",
)


@pytest.mark.parametrize("flag", REFUSED)
def test_data_may_set_the_flags_of_a_list_only(flag: str) -> None:
    """When an entry is read, when its configuration is made, and when the compiler gets it."""
    foreign = tuned_entry(flags=(flag,))
    Library([foreign]).save(Path("tuned"))
    with pytest.raises(UsageError, match="is not a compiler flag that a library may set"):
        Library.load(Path("tuned")).find(SMALL)
    with pytest.raises(ConfigurationError, match="is not a compiler flag that a library may set"):
        Tuned(FIT, (flag,))
    data = {**Tuned(FIT).to_dict(), "extra_flags": [flag]}
    with pytest.raises(ConfigurationError, match="is not a compiler flag that a library may set"):
        configuration_from_dict(data)
    smuggled = Tuned(FIT)
    object.__setattr__(smuggled, "extra_flags", (flag,))
    dispatch = Dispatch(SMALL, smuggled)
    for make in (
        lambda: build_request("", [dispatch], CpuTarget()),
        lambda: launch_flags(dispatch, CpuTarget()),
    ):
        with pytest.raises(ConfigurationError, match="is not a compiler flag that a library may set"):
            make()


@pytest.mark.parametrize(
    "flags",
    [
        *(row.flags for row in FLOWS.values()),
        ("--iree-opt-level=O3", "-O2", "--O1"),
        ("--iree-llvmcpu-target-cpu-features=+sse4.1,-amx-tile",),
        ("--iree-llvmcpu-target-cpu-features=",),
    ],
)
def test_flags_that_configurations_need_are_on_the_list(flags: tuple[str, ...]) -> None:
    assert Tuned(FIT, flags).flags == flags
    assert launch_flags(Dispatch(SMALL, Tuned(FIT, flags)), CpuTarget())[-len(flags) :] == flags


def test_every_configuration_may_pass_its_flags_to_the_compiler() -> None:
    """Of every search space, and of every shipped entry."""
    target = CpuTarget()
    for operation in EVERY_MODE:
        for space in spaces(operation, target.limits, packed_weights=True):
            for seed in range(3):
                configuration = space.to_configuration(space.draw(np.random.default_rng(seed)))
                launch_flags(Dispatch(operation, configuration), target)
    for name in shipped_libraries():
        for each in Library.load(find_library(Path(name))).entries:
            Tuned(each.dispatch.configuration, each.extra_flags)


@pytest.mark.usefixtures("in_process")
def test_flags_that_run_programs_are_not_taken_from_a_library(run, null_tree):
    null_tree("--target=null", "--m=16", "--n=32", "--k=8", "--lhs=f32")
    flag = REFUSED[0]
    Library([replace(tuned_entry(), provenance=replace(NULL, flags=(flag,)))]).save(Path("tuned"))
    outcome = run("compile", "--library=tuned").checked(1)
    assert f"'{flag}' is not a compiler flag that a library may set" in outcome.err
    dispatches = load_manifest(Tree(Path())).dispatches()
    assert not any(isinstance(each.dispatch.configuration, Tuned) for _, each in dispatches)


def test_records_with_other_flags_become_no_entry() -> None:
    """Users may measure with any flag; a library would not be readable with it."""
    origin = replace(NULL, flags=("--iree-hal-dump-executable-files-to=x",))
    (choice,) = choose(
        [default(origin=origin), record(FIT, operation=default().dispatch.operation, origin=origin)]
    )
    assert choice.entry is None
    assert choice.reason.endswith("but a library may not set --iree-hal-dump-executable-files-to=x")


# -- files with code -------------------------------------------------------------------------------

EXTERN = Extern(label="mine", object="k.ptx", entry="k", workgroups=(1,), workgroup_size=(32,))


def test_a_library_that_names_an_object_file_is_not_used(tmp_path: Path) -> None:
    """Its kernel would be executed, although a library is data."""
    Library([entry(SMALL, configuration=EXTERN, origin=HERE)]).save(tmp_path / "tuned")
    with pytest.raises(UsageError, match="configuration: it names an object file, which a library may not"):
        Library.load(tmp_path / "tuned").find(SMALL)


def test_nor_is_such_a_configuration_in_a_manifest_one_of_a_library() -> None:
    data = {"kind": "tuned", "inner": EXTERN.to_dict(), "extra_flags": [], "tuned_from": ""}
    with pytest.raises(ConfigurationError, match="names an object file"):
        configuration_from_dict(data)


def test_records_of_an_object_file_become_no_entry() -> None:
    (choice,) = choose([default(), record(EXTERN, operation=default().dispatch.operation)])
    assert choice.entry is None and choice.reason.endswith("but a library may not name an object file")


# -- features of CPUs ------------------------------------------------------------------------------


def features_entry(features: str, target: str = "llvm-cpu") -> Entry:
    flags = (f"--iree-llvmcpu-target-cpu-features={features}",)
    return tuned_entry(target=target, flags=flags)


def found_for(found: Entry, target: str) -> TunedLookup:
    revision = HERE.iree.removeprefix("compiler ").partition(",")[0]
    return TunedConfigurations(Library([found]), parse_target(target), revision).of(SMALL)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ("+avx2,-amx-tile", ""),
        ("+fma,+sse4.2,+lzcnt,+avx512bf16", ""),
        ("+avx2,+amx-tile,+avx512fp16", "this CPU lacks amx-tile, avx512fp16, which it was tuned with"),
        ("+nosuch", "this CPU lacks nosuch, which it was tuned with"),
    ],
)
def test_an_entry_for_instructions_that_this_cpu_lacks_is_not_used(features, reason, monkeypatch):
    cpu = HostCpu("a", frozenset({"avx2", "fma", "sse4_2", "abm", "avx512_bf16"}))
    monkeypatch.setattr("dispatch_profiler.targets.cpu.host_cpu", lambda: cpu)
    monkeypatch.setattr("dispatch_profiler.targets.cpu.host_cpu", lambda: cpu)
    found = found_for(features_entry(features), "llvm-cpu")
    assert found.problem.removeprefix(f"{FIT.name}: ") == reason
    assert (found.dispatch is None) == bool(reason)


def test_features_of_a_named_cpu_are_those_of_its_own_entries():
    """What runs the code is unknown."""
    own = features_entry("+amx-tile", "llvm-cpu:sapphirerapids")
    assert found_for(own, "llvm-cpu:sapphirerapids").dispatch is not None
    other = found_for(own, "llvm-cpu:znver4")
    assert other.dispatch is None
    assert other.problem.endswith("tuned with the CPU features amx-tile, which llvm-cpu:znver4 may lack")


def test_linux_and_llvm_name_the_features_of_this_cpu():
    """Those that the compiler finds are not missing."""
    own = needed_features(IreeCompiler().resolve(CpuTarget().compile_flags))
    assert own
    assert missing_features(own) == ()


#: The fastest is wrong.
FAULTS: dict[str, dict[str, object]] = {
    "*_8x32x4": {"fault": "wrong_element", "time_ms": 0.01},
    "*_default": {"time_ms": 0.25},
    "matmul_16*_4x16x1": {"time_ms": 0.1},
    "*": {"time_ms": 0.2},
}


@pytest.mark.usefixtures("in_process")
def test_the_records_of_a_run_become_a_library(run, null_tree):
    """The fastest of each operation, with the speedup and the speed that the records state; never a wrong one."""
    sizes = ("--problem-m=16,64", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    null_tree(*sizes, faults=FAULTS)
    assert run("profiler", "--output=run.csv").status == 1
    records = read_records(Path("run.jsonl"))
    dispatches = [entry.dispatch for _, entry in load_manifest(Tree(Path())).dispatches()]
    library = Library.from_records(records, dispatches)
    library.save(Path("tuned"))

    faster = {
        record.dispatch: (record, found.vs_default)
        for record, found in SpeedupsOfRuns(records=records).all()
        if found.vs_default is not None and found.vs_default.low > 1.0
    }
    assert len(library) == len({record.operation for record, _ in faster.values()}) > 0
    for kept in Library.load(Path("tuned")).entries:
        record, speedup = faster[kept.dispatch.name]
        assert record.measurement is not None
        assert kept.gflops.value == pytest.approx(record.measurement.gflops(record.flops), rel=1e-4)
        assert kept.speedup.value == pytest.approx(speedup.value, rel=1e-4)
        assert kept.provenance == record.provenance
        rivals = [s.value for r, s in faster.values() if r.operation == record.operation]
        assert speedup.value == max(rivals)
    assert all(not isinstance(entry.dispatch.configuration, Default) for entry in library.entries)
    assert any(record.verdict is Verdict.FAILED for record in records)
    assert {choice.operation for choice in choose(records, dispatches)} == {
        each.operation for each in records
    }
