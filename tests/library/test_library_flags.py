"""Of the compiler's flags, data may set those of a list; instructions that this CPU lacks are not generated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from every_kind import EVERY_MODE
from library_samples import HERE, default, entry, record

from dispatch_profiler.compiler import IreeCompiler, NullCompiler, build_request, launch_flags
from dispatch_profiler.configurations import (
    FLOWS,
    CpuTiles,
    Extern,
    Tuned,
    configuration_from_dict,
    needed_features,
    spaces,
)
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import ConfigurationError, UsageError
from dispatch_profiler.library import Entry, Library, choose, find_library, shipped_libraries
from dispatch_profiler.library.tuned import TunedConfigurations, TunedLookup
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import CpuTarget, HostCpu, missing_features, parse_target

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
    outcome = run("compile", "--library=tuned")
    assert outcome.status == 1
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
