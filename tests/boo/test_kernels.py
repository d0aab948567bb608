"""An operation and a device -> a kernel: compiled once, found again by content, in the fastest way that works."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dispatch_profiler.boo.environment import LaunchSettings
from dispatch_profiler.boo.kernels import (
    OperationKernels,
    launch_devices,
    provider,
    target_of,
    variants,
)
from dispatch_profiler.boo.kernels.build import KernelSearch, Toolchain, find_kernels, known_fault
from dispatch_profiler.boo.kernels.variants import LaunchTuning
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import (
    BuildOutcome,
    BuildRequest,
    Built,
    Cache,
    IreeCompiler,
    NullCompiler,
    launch_key,
)
from dispatch_profiler.configurations import (
    Configuration,
    CpuTiles,
    Default,
    Formed,
    Microkernel,
    TritonTiles,
    Tuned,
    WinogradMicrokernel,
)
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import CompilerError, TargetError, UsageError, WorkerCrashed, WorkerTimedOut
from dispatch_profiler.library import Entry, Estimate, Library, family_files, find_library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.runtime import cuda_driver
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import NullTarget, Target, fastest_form, parse_target
from dispatch_profiler.targets.untuned import launch_kernels

TILES = CpuTiles((16, 16), (8, 16, 1))
#: No rule knows a kernel for it.
MATMUL = Matmul(16, 16, 16, lhs_layout="n")
NULL = DeviceUri("null")
#: An operation whose fastest form on a CPU is not the direct one.
FHWC = Conv2d(1, 8, 8, 32, 32, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
CPU = parse_target("llvm-cpu")


@pytest.fixture(autouse=True)
def empty_memory() -> None:
    SESSION.clear("kernels")


@pytest.fixture
def settings(tmp_path: Path) -> LaunchSettings:
    return LaunchSettings(tmp_path / "kernels", None)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, object]], None]:
    """`faults({"*": {...}})`: the null compiler has these faults."""

    def plant(rules: dict[str, object]) -> None:
        file = tmp_path / "faults.yaml"
        file.write_text(yaml.safe_dump(rules))
        monkeypatch.setattr(provider, "target_of", lambda device: NullTarget(str(file)))

    return plant


def kernels(operation: Operation, settings: LaunchSettings, **options: bool) -> OperationKernels:
    return OperationKernels(operation, f"name_of_{operation.kind}", settings, **options)


def entries(settings: LaunchSettings) -> list[str]:
    assert settings.cache_folder is not None
    return [entry.name for entry in Cache(settings.cache_folder).entries()]


def test_a_kernel_is_compiled_once_and_then_found_in_the_cache(settings: LaunchSettings, builds: list[str]):
    """A process that starts later compiles nothing. The cache lists it by its name."""
    first = kernels(MATMUL, settings).kernel(NULL)
    assert first is kernels(MATMUL, settings).kernel(NULL)
    SESSION.clear("kernels")

    assert kernels(MATMUL, settings).kernel(NULL) == first
    assert builds == [first.function] == [f"{MATMUL.name}_tile_config_default"]
    assert entries(settings) == ["name_of_matmul"]


def test_without_a_cache_a_process_still_compiles_once(settings: LaunchSettings, builds: list[str]):
    unsaved = replace(settings, cache_folder=None)
    for _ in range(2):
        kernels(MATMUL, unsaved).kernel(NULL)

    assert len(builds) == 1
    assert not settings.cache_folder.exists()


def test_a_name_identifies_nothing(settings: LaunchSettings, builds: list[str]):
    """Two layer norms that differ only in eps have the same name here, and kernels of their own."""
    norms = [LayerNorm(8, 16), LayerNorm(8, 16, eps=1.0)]
    found = [kernels(norm, settings).kernel(NULL) for norm in norms]

    assert found[0].key != found[1].key
    assert len(builds) == len(entries(settings)) == 2


def test_eight_threads_compile_once(settings: LaunchSettings, builds: list[str]):
    barrier = threading.Barrier(8)

    def get(_: int) -> str:
        barrier.wait()
        return kernels(MATMUL, settings).kernel(NULL).key

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(get, range(8)))) == 1
    assert len(builds) == 1


def test_a_damaged_entry_is_compiled_again(settings: LaunchSettings, builds: list[str]):
    first = kernels(MATMUL, settings).kernel(NULL)
    (path,) = settings.cache_folder.rglob("*.built")
    path.write_bytes(path.read_bytes()[:-1])
    SESSION.clear("kernels")

    assert kernels(MATMUL, settings).kernel(NULL) == first
    assert len(builds) == 2


def test_a_kernel_that_does_not_compile_is_an_error_with_the_dispatch_and_the_reason(
    settings: LaunchSettings, builds: list[str], faults
):
    faults({"*": {"not_compiled": "no such tile"}})

    for _ in range(2):
        with pytest.raises(CompilerError, match=rf"^{MATMUL.name}_tile_config_default for null:.*: not compiled: no such tile$"):  # fmt: skip
            kernels(MATMUL, settings).kernel(NULL)
    assert len(builds) == 1  # the cache has the failure


def test_a_crash_of_the_compiler_is_known_in_every_process(
    settings: LaunchSettings, builds: list[str], faults, monkeypatch: pytest.MonkeyPatch
):
    """It is tried twice, and never again; the error has the compiler's words and the next step."""
    faults({"*": {}})
    crash = WorkerCrashed("killed by SIGABRT: LLVM ERROR: no such vector", is_deterministic=True)

    def crashing(compiler: object, request: BuildRequest) -> Built:
        builds.append(request.dispatches[0].name)
        raise crash

    monkeypatch.setattr("dispatch_profiler.compiler.workers.pool.build_with", crashing)
    for _ in range(3):
        with pytest.raises(CompilerError, match=r"SIGABRT: LLVM ERROR: no such vector$") as caught:
            kernels(MATMUL, settings).kernel(NULL)
        assert "cache clear --failures" in caught.value.hint
    assert len(builds) == 2

    assert settings.cache_folder is not None
    cache = Cache(settings.cache_folder)
    cache.remove([entry for entry in cache.entries() if entry.failures])
    crash.is_deterministic = False
    for _ in range(2):
        with pytest.raises(CompilerError) as caught:
            kernels(MATMUL, settings).kernel(NULL)
        assert caught.value.hint == ""
    assert len(builds) == 4


def test_a_kernel_that_ran_out_of_time_is_tried_again_with_more(
    settings: LaunchSettings, builds: list[str], faults, monkeypatch: pytest.MonkeyPatch
):
    faults({"*": {}})

    def slow(compiler: object, request: BuildRequest) -> Built:
        builds.append(request.dispatches[0].name)
        raise WorkerTimedOut("no answer within 2 s", seconds=2.0, is_deterministic=True)

    monkeypatch.setattr("dispatch_profiler.compiler.workers.pool.build_with", slow)
    for seconds, count in ((2.0, 1), (2.0, 1), (1.0, 1), (3.0, 2)):
        monkeypatch.setattr("dispatch_profiler.boo.kernels.build._SECONDS", seconds)
        with pytest.raises(CompilerError, match="no answer within 2 s"):
            kernels(MATMUL, settings).kernel(NULL)
        assert len(builds) == count


def test_what_lacked_memory_is_tried_again(settings: LaunchSettings, builds: list[str], faults):
    faults({"*": {"compiler": "memory"}})

    for _ in range(2):
        with pytest.raises(CompilerError, match="out of memory"):
            kernels(MATMUL, settings).kernel(NULL)
    assert len(builds) == 2


def test_a_cache_that_cannot_be_written_to_is_logged_once(
    tmp_path: Path, settings: LaunchSettings, builds: list[str], caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    unwritable = replace(settings, cache_folder=tmp_path / "file")
    for operation in (MATMUL, replace(MATMUL, m=5)):
        kernels(operation, unwritable).kernel(NULL)
    (message,) = caplog.messages
    assert message.startswith(f"cannot write to the cache {tmp_path / 'file'}: ") and len(builds) == 2


def test_only_the_cache_is_used_if_so_requested(settings: LaunchSettings, builds: list[str]):
    with pytest.raises(UsageError, match="name_of_matmul for null is not in the launch cache") as caught:
        kernels(MATMUL, settings, cache_only=True).kernel(NULL)
    assert "preload" in caught.value.hint and builds == []

    found = kernels(MATMUL, settings).kernel(NULL)
    SESSION.clear("kernels")
    assert kernels(MATMUL, settings, cache_only=True).kernel(NULL) == found


# -- kernels that are known to be wrong ------------------------------------------------------------

HALF = ElementTypes("f16", "f16", "f16")


def conv_of(mode: str, window: int, stride: int = 1, groups: int = 1, layout: str = "nhwc") -> Conv2d:
    extents = {"n": 1, "h": 8, "w": 8, "c": 16, "k": 16, "r": window, "s": window}
    return Conv2d(**extents, stride=(stride, stride), groups=groups, layout=layout, types=HALF, mode=mode)


@pytest.mark.parametrize(
    ("operation", "is_wrong"),
    [
        (conv_of("weight_backward", 1, stride=2), True),
        (conv_of("weight_backward", 1), False),
        (conv_of("weight_backward", 3, stride=2), False),
        (conv_of("input_backward", 3), True),
        (conv_of("input_backward", 1), False),
        (conv_of("input_backward", 1, groups=4, layout="nchw"), True),
        (conv_of("input_backward", 1, layout="nchw"), False),
        (conv_of("forward", 3), False),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_kernels_that_are_known_to_be_wrong_are_not_launched(operation: Conv2d, is_wrong: bool):
    """Only in 16-bit types on NVIDIA's GPUs, and not what a library has, which was verified."""
    cuda = parse_target("cuda:sm_90")
    assert bool(known_fault(operation, Default(), cuda)) == is_wrong
    assert not known_fault(replace(operation, types=ElementTypes("f32", "f32", "f32")), Default(), cuda)
    assert not known_fault(operation, Tuned(TILES), cuda)
    assert not known_fault(operation, Default(), CPU)


def test_a_kernel_that_is_known_to_be_wrong_is_an_error_without_a_build(monkeypatch: pytest.MonkeyPatch):
    operation = conv_of("input_backward", 3)
    monkeypatch.setattr(variants, "triton_version", lambda: "")  # otherwise a kernel of Triton computes it
    monkeypatch.setattr(KernelSearch, "request", property(lambda self: pytest.fail("built")))
    search = KernelSearch(operation, "mine", Toolchain.of(parse_target("cuda:sm_90"), ""))
    ((_, found),) = find_kernels([search], None, workers=1)

    assert isinstance(found, CompilerError)
    assert found.message.endswith("16-bit types wrongly for NVIDIA's tensor cores")


# -- variants --------------------------------------------------------------------------------------


def configurations(operation: Operation, tuning: LaunchTuning, target: Target = CPU) -> list[Configuration]:
    return [each.dispatch.configuration for each in tuning.variants(operation, target)]


def save_library(folder: Path, tiles: CpuTiles, *others: tuple[Operation, Configuration]) -> str:
    """A library with `tiles` for MATMUL, and with `others`, measured with the installed compiler."""
    iree = f"compiler {IreeCompiler().revision}, runtime 3.13.0"
    provenance = Provenance("local-task", "llvm-cpu", iree, 7, flags=CPU.compile_flags)
    faster = Estimate(2.0, 1.9, 2.1)
    entries = [Entry(Dispatch(*each), faster, faster, provenance) for each in ((MATMUL, tiles), *others)]
    Library(entries).save(folder)
    return str(folder)


@pytest.fixture
def library(tmp_path: Path) -> str:
    """The folder of a library with valid tiles for MATMUL."""
    return save_library(tmp_path / "library", TILES)


@pytest.mark.usefixtures("two_threads")
def test_without_a_library_the_fastest_form_comes_first_and_the_default_last():
    first, *_, last = configurations(FHWC, LaunchTuning())

    assert isinstance(first, Formed) and last == Default()
    assert configurations(MATMUL, LaunchTuning()) == [Default()]


def test_a_constant_weight_is_packed_by_a_microkernel_and_next_by_the_form(monkeypatch: pytest.MonkeyPatch):
    """Which is there if the microkernel cannot be compiled."""
    suggested = Microkernel((6, 64), (2, 6, 32), packed=True)
    monkeypatch.setattr(launch_kernels, "packed_kernels", lambda operation, target: (suggested,))
    found = [each.dispatch.configuration for each in LaunchTuning().variants(FHWC, CPU, packs_weight=True)]
    form = fastest_form(FHWC, CPU, packed_weights=True)
    assert isinstance(form, Formed) and not form.packed
    assert found == [suggested, form, Default()]
    assert suggested not in configurations(FHWC, LaunchTuning())


@pytest.mark.parametrize(("threads", "is_first"), [(1, True), (2, True), (4, True), (5, False), (16, False)])
def test_an_entry_for_far_fewer_threads_comes_after_the_microkernel_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, is_first: bool
):
    """Of a library that was tuned on two threads."""
    suggested = Microkernel((6, 64), (2, 6, 32), packed=True)
    monkeypatch.setattr(launch_kernels, "packed_kernels", lambda operation, target: (suggested,))
    entry = WinogradMicrokernel(4, (4, 32), 4, (4, 32))
    folder = save_library(tmp_path / "library", TILES, (FHWC, entry))
    entries = [
        replace(each, provenance=replace(each.provenance, machine=Machine("A", 2, threads=2)))
        for each in Library.load(Path(folder)).entries
    ]
    Library(entries).save(Path(folder))
    monkeypatch.setattr("dispatch_profiler.library.entry.usable_threads", lambda: threads)

    tuning = LaunchTuning.read(folder, CPU, IreeCompiler())
    found = [each.dispatch.configuration for each in tuning.variants(FHWC, CPU, packs_weight=True)]
    tuned = next(each for each in found if isinstance(each, Tuned))
    assert (found.index(tuned) < found.index(suggested)) is is_first
    assert found.count(suggested) == 1


def test_the_entry_of_a_library_comes_first(library: str):
    tuning = LaunchTuning.read(library, CPU, IreeCompiler())

    assert configurations(MATMUL, tuning) == [Tuned(TILES), Default()]
    assert configurations(Matmul(16, 16, 8, lhs_layout="n"), tuning) == [Default()]


def test_an_operation_with_an_epilogue_uses_the_entry_without_one(library: str):
    """What it sums is the same. Its name says where it is from."""
    tuning = LaunchTuning.read(library, CPU, IreeCompiler())
    with_bias = replace(MATMUL, epilogue=Epilogue.parse("bias+relu"))
    first, *rest = configurations(with_bias, tuning)

    assert first == Tuned(TILES, (), MATMUL.name)
    assert rest == [Default()]


def test_an_entry_of_its_own_precedes_those_with_other_epilogues(tmp_path: Path):
    plain, biased = TILES, CpuTiles((16, 16), (8, 8, 4))
    operation = replace(MATMUL, epilogue=Epilogue.parse("bias"))
    for each, expected in ((operation, biased), (replace(MATMUL, epilogue=Epilogue.parse("relu")), plain)):
        library = save_library(tmp_path / each.name, plain, (operation, biased))
        found, *_ = configurations(each, LaunchTuning.read(library, CPU, IreeCompiler()))
        assert isinstance(found, Tuned)
        assert found.inner == expected


def test_an_entry_that_is_not_valid_is_not_used_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """For example because it was edited by hand."""
    tiles = CpuTiles((64, 128), (8, 32, 24))
    tuning = LaunchTuning.read(save_library(tmp_path, tiles), CPU, IreeCompiler())

    assert configurations(MATMUL, tuning) == [Default()]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{MATMUL.name}: the library's entry cannot be used: {tiles.name}: ")


def test_a_launch_reads_the_file_of_its_family_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a library that is as large as the shipped one."""
    shutil.copytree(find_library(Path("h200")), tmp_path / "mine")
    read: list[Path] = []
    plain = family_files.read_file
    monkeypatch.setattr(family_files, "read_file", lambda file: read.append(file) or plain(file))
    cuda = parse_target("cuda:sm_90")
    tuning = LaunchTuning.read(str(tmp_path / "mine"), cuda, IreeCompiler())

    for channels in (32, 64):
        assert configurations(Conv2d(1, 14, 14, channels, 64, 3, 3), tuning, cuda)
    own = [each.relative_to(tmp_path / "mine") for each in read if each.is_relative_to(tmp_path)]
    assert own == [Path("library.json"), Path("cuda-sm_90", "convolution.json")]


def test_an_entry_of_another_compiler_is_not_used(library: str):
    tuning = LaunchTuning.read(library, CPU, NullCompiler())

    assert configurations(MATMUL, tuning) == [Default()]


def test_a_kernel_of_triton_is_left_out_without_triton(library: str, monkeypatch: pytest.MonkeyPatch):
    """It would fail in every process again, because Triton may be installed meanwhile."""
    cuda = parse_target("cuda:sm_90")
    operation = next(
        each.operation
        for each in Library.load(find_library(Path("h200"))).entries
        if isinstance(each.dispatch.configuration, TritonTiles)
    )
    tuning = LaunchTuning.read(None, cuda, IreeCompiler())
    first, *_ = configurations(operation, tuning, cuda)
    assert isinstance(first, Tuned)

    monkeypatch.setattr(variants, "triton_version", str)
    assert configurations(operation, tuning, cuda) == [Default()]


def test_a_tuning_spec_is_passed_to_the_compiler(tmp_path: Path):
    spec = tmp_path / "spec.mlir"
    spec.write_text("module {}")
    first, *rest = LaunchTuning.read(str(spec), CPU, IreeCompiler()).variants(MATMUL, CPU)

    assert (first.dispatch.configuration, first.flags) == (
        Default(),
        (f"--iree-codegen-tuning-spec-path={spec}",),
    )
    assert [each.flags for each in rest] == [()]


def test_a_library_is_read_once_until_its_file_changes(tmp_path: Path):
    """A large one takes half a second, and a model prepares its kernels several times."""
    path = save_library(tmp_path, TILES)
    first = LaunchTuning.read(path, CPU, IreeCompiler())
    assert LaunchTuning.read(path, CPU, IreeCompiler()) is first

    other = CpuTiles((16, 16), (8, 8, 4))
    assert save_library(tmp_path, other) == path
    assert configurations(MATMUL, LaunchTuning.read(path, CPU, IreeCompiler())) == [Tuned(other), Default()]


def test_a_library_of_another_compiler_is_named_once_with_the_command_that_proves_it(tmp_path: Path, caplog):
    path = save_library(tmp_path, TILES)
    (entry,) = Library.load(Path(path)).entries
    other = replace(entry, provenance=replace(entry.provenance, iree="compiler 3.12.0, runtime 3.12.0"))
    Library([other]).save(Path(path))
    with caplog.at_level(logging.WARNING, "dispatch_profiler.boo"):
        for _ in range(2):
            assert configurations(MATMUL, LaunchTuning.read(path, CPU, IreeCompiler())) == [Default()]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "were measured for llvm-cpu with compiler 3.12.0" in message
    assert message.endswith(f"dispatch-profiler library prove {path}")


def test_an_empty_name_means_no_tuning():
    """Forms are used still: they are how this package computes convolutions."""
    tuning = LaunchTuning.read("", CPU, IreeCompiler())

    assert tuning == LaunchTuning()


def test_by_default_the_shipped_library_for_the_target_is_used():
    tuning = LaunchTuning.read(None, parse_target("cuda:sm_90"), IreeCompiler())

    assert tuning.configurations is not None
    assert len(tuning.configurations.library) == len(Library.load(find_library(Path("h200"))))


def shipped_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CpuTiles, Matmul]:
    """Let a library of two products be the one that is shipped for this CPU; returns the tiles of both, and the second."""
    tiles, other = CpuTiles((16, 16), (8, 8, 4)), Matmul(16, 16, 8, lhs_layout="n")
    save_library(folder, tiles, (other, tiles))
    monkeypatch.setattr(variants, "shipped_for", lambda target: folder)
    return tiles, other


def test_an_entry_of_the_user_wins_and_the_included_library_has_the_rest(
    tmp_path: Path, library: str, monkeypatch
):
    """Before, naming a library took all included entries away."""
    included, other = shipped_library(tmp_path / "shipped", monkeypatch)
    tuning = LaunchTuning.read(library, CPU, IreeCompiler())
    assert configurations(MATMUL, tuning) == [Tuned(TILES), Tuned(included), Default()]
    assert configurations(other, tuning) == [Tuned(included), Default()]
    assert LaunchTuning.read(library, CPU, IreeCompiler()) is tuning

    alone = LaunchTuning.read(None, CPU, IreeCompiler())
    assert configurations(MATMUL, alone) == [Tuned(included), Default()]
    assert LaunchTuning.read(str(tmp_path / "shipped"), CPU, IreeCompiler()) is alone


def test_an_empty_value_disables_both_libraries(tmp_path: Path, monkeypatch):
    _, other = shipped_library(tmp_path / "shipped", monkeypatch)
    tuning = LaunchTuning.read("", CPU, IreeCompiler())
    assert configurations(MATMUL, tuning) == configurations(other, tuning) == [Default()]


def test_constant_weights_have_both_libraries_too(tmp_path: Path, library: str, monkeypatch):
    included, _ = shipped_library(tmp_path / "shipped", monkeypatch)
    tuning = LaunchTuning.read(library, CPU, IreeCompiler())
    packed = [each.dispatch.configuration for each in tuning.variants(MATMUL, CPU, packs_weight=True)]
    tuned = [each.inner for each in packed if isinstance(each, Tuned)]
    assert TILES in tuned and included in tuned
    assert tuned.index(TILES) < tuned.index(included)


def test_an_included_entry_is_used_where_that_of_the_user_is_for_another_compiler(
    tmp_path: Path, monkeypatch, caplog
):
    included, _ = shipped_library(tmp_path / "shipped", monkeypatch)
    path = save_library(tmp_path / "library", TILES)
    (entry,) = Library.load(Path(path)).entries
    old = replace(entry, provenance=replace(entry.provenance, iree="compiler 3.12.0, runtime 3.12.0"))
    Library([old]).save(Path(path))
    with caplog.at_level(logging.WARNING, "dispatch_profiler.boo"):
        assert configurations(MATMUL, LaunchTuning.read(path, CPU, IreeCompiler())) == [
            Tuned(included),
            Default(),
        ]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "were measured for llvm-cpu with compiler 3.12.0" in message


@pytest.mark.parametrize("text", ["garbage\n", "", "module {}", "\0\1", "module { func.func @f("])
def test_a_tuning_spec_that_is_none_is_an_error_and_not_another_kernel(
    settings: LaunchSettings, tmp_path: Path, text: str
):
    """In the process that compiles, and in one that finds the failure in the cache."""
    spec = tmp_path / "spec.mlir"
    spec.write_text(text)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^BOO_TUNING_SPEC_PATH: the compiler cannot read") as caught:
            kernels(MATMUL, replace(settings, tuning=str(spec))).kernel(DeviceUri("local-task"))
        assert str(spec) in caught.value.message and caught.value.hint
        SESSION.clear("kernels")


def test_a_file_that_is_neither_a_library_nor_a_tuning_spec_is_an_error(tmp_path: Path):
    (tmp_path / "spec.txt").write_text("garbage")
    with pytest.raises(UsageError, match=r"spec\.txt is neither a library nor a tuning spec$"):
        LaunchTuning.read(str(tmp_path / "spec.txt"), CPU, IreeCompiler())


@pytest.mark.parametrize("name", ["missing", "missing.mlir"])
def test_tuning_that_does_not_exist_is_an_error_that_names_the_variable(name: str):
    with pytest.raises(UsageError, match=f"^BOO_TUNING_SPEC_PATH: {name}: no such library$"):
        LaunchTuning.read(name, CPU, IreeCompiler())


def test_an_operation_that_the_target_does_not_support_has_only_the_default():
    """Its build says why."""
    operation = Matmul(8, 8, 8, ElementTypes("f64", "f64", "f64"), epilogue=Epilogue.parse("gelu"))
    assert CPU.unsupported_reason(operation)

    assert configurations(operation, LaunchTuning(flags=("--flag",))) == [Default()]


def test_what_does_not_compile_is_replaced_by_the_next_variant(
    settings: LaunchSettings, builds: list[str], faults, library: str, monkeypatch, caplog
):
    """A tuned configuration never makes an operation unusable. The log says which was passed over, once."""
    faults({"*_default": {}, "*_8x16x1": {"not_applied": True}})
    monkeypatch.setattr(TunedConfigurations, "foreign_reason", lambda self, entry: "")
    tuned = replace(settings, tuning=library)
    with caplog.at_level(logging.WARNING, "dispatch_profiler.boo"):
        found = kernels(MATMUL, tuned).kernel(NULL)
        SESSION.clear("kernels")
        assert kernels(MATMUL, tuned).kernel(NULL) == found

    assert found.function == f"{MATMUL.name}_tile_config_default"
    assert builds == [f"{MATMUL.name}_tile_config_tuned", found.function]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "tile_config_tuned" in message and message.endswith("; trying tile_config_default")


# -- targets ---------------------------------------------------------------------------------------


def test_both_drivers_of_this_cpu_share_kernels():
    assert target_of(DeviceUri("local-sync")) == target_of(DeviceUri("local-task")) == CPU


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of Hopper, and an older one."""
    capabilities = {"0": (9, 0), "1": (9, 0), "2": (8, 0)}
    monkeypatch.setattr(cuda_driver, "gpu_count", lambda: len(capabilities))

    def find(uri: str) -> object:
        found = capabilities.get(DeviceUri.parse(uri).path or "0")
        return found and SimpleNamespace(capability=found)

    monkeypatch.setattr(cuda_driver, "find_gpu", find)


def test_a_gpu_has_kernels_for_its_architecture(gpus: None):
    assert target_of(DeviceUri("cuda")) == parse_target("cuda:sm_90")
    assert target_of(DeviceUri("cuda", "2")) == parse_target("cuda:sm_80")


def test_the_devices_are_this_cpu_and_one_gpu_of_each_architecture(gpus: None):
    assert list(map(str, launch_devices())) == ["local-task", "cuda://0", "cuda://2"]


@pytest.mark.parametrize("uri", ["cuda://7", "hip", "cuda@node7"])
def test_a_device_without_launches_is_an_error(gpus: None, uri: str):
    with pytest.raises(TargetError, match=uri.partition("@")[0]) as caught:
        target_of(DeviceUri.parse(uri))
    assert caught.value.hint


# -- a new process ---------------------------------------------------------------------------------


def test_a_warm_start_loads_neither_compiler_nor_templates(settings: LaunchSettings):
    """What takes its time is left out: only the key is computed, and one file is read."""
    cache, dispatch = Cache(settings.cache_folder), Dispatch(MATMUL, Default())
    key = launch_key(dispatch, CPU, IreeCompiler())
    cache.put(key, Built(b"vmfb", b"vmfb", {dispatch.name: BuildOutcome(State.COMPILED)}))
    program = f"""
import sys
from pathlib import Path
from dispatch_profiler.boo.environment import LaunchSettings
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.operations import Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri
settings = LaunchSettings(Path({str(settings.cache_folder)!r}), None)
kernel = OperationKernels(Matmul(16, 16, 16, lhs_layout="n"), "name", settings, cache_only=True).kernel(DeviceUri("local-sync"))
print(kernel.vmfb, kernel.key)
print([name for name in ("iree.compiler", "iree.runtime", "jinja2", "joblib", "scipy", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == f"{b'vmfb'} {key}\n[]\n", done.stderr
