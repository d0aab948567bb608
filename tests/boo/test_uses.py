"""Where kernels of launches come from, and which operations are collected to be tuned."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler import misses, read_workload
from dispatch_profiler.boo import get_launchable
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.boo.kernels.uses import USES, KernelOrigin, KernelUse, summary_of, use_of
from dispatch_profiler.boo.kernels.variants import LaunchTuning, Variant
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Formed, Microkernel, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library.tuned import TunedLookup
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul, Operation
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import fastest_form, parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry, append_workload

CPU = parse_target("llvm-cpu")
PRODUCT = Matmul(64, 128, 32)
CONV = Conv2d(1, 8, 8, 16, 16, 3, 3, layout="nhwc_fhwc_nhwc")
TILES = CpuTiles((32, 64), (8, 16, 1))
PACKED = Microkernel((6, 64), (2, 6, 32), packed=True)


class Looked(LaunchTuning):
    """Tuned configurations that find `found` for every operation."""

    found: TunedLookup | None = None

    def lookup(self, operation: Operation, *, packs_weight: bool = False) -> TunedLookup | None:
        return self.found


def found(
    lookup: TunedLookup | None, configuration: Configuration, operation: Operation = PRODUCT
) -> KernelUse:
    tuning = Looked()
    object.__setattr__(tuning, "found", lookup)
    return use_of(Variant(Dispatch(operation, configuration)), tuning, CPU, packs_weight=False)


def entry(tuned: Tuned, **values: object) -> TunedLookup:
    return TunedLookup(PRODUCT, Dispatch(PRODUCT, tuned), **values)


OWN, NEAR = Tuned(TILES), Tuned(TILES, tuned_from="matmul_64x128x32_f32t_f32t_f32t_bias")


NO_LIBRARY = "no library is used: BOO_TUNING_SPEC_PATH is empty, or none is included for this hardware"


@pytest.mark.parametrize(
    ("lookup", "configuration", "origin", "reason"),
    [
        (entry(OWN), OWN, KernelOrigin.ENTRY, ""),
        (entry(OWN), PACKED, KernelOrigin.PREDICTED, "it is faster here than the library's entry"),
        (entry(OWN, shares_otherwise=True), OWN, KernelOrigin.OTHER_THREADS, "the library's entry is for another number of threads"),
        (entry(OWN, shares_otherwise=True), PACKED, KernelOrigin.PREDICTED, "the library's entry is for another number of threads"),
        (entry(NEAR), NEAR, KernelOrigin.NEAR, "the library has matmul_64x128x32_f32t_f32t_f32t_bias"),
        (TunedLookup(PRODUCT), PACKED, KernelOrigin.PREDICTED, "the library has no entry"),
        (TunedLookup(PRODUCT), Default(), KernelOrigin.UNTUNED, "the library has no entry"),
        (TunedLookup(PRODUCT, problem="measured for cuda:sm_90"), Default(), KernelOrigin.UNTUNED, "the library's entry is not used: measured for cuda:sm_90"),
        (None, Default(), KernelOrigin.UNTUNED, NO_LIBRARY),
    ],
)  # fmt: skip
def test_a_kernel_says_where_it_comes_from_and_why(
    lookup: TunedLookup | None, configuration: Configuration, origin: KernelOrigin, reason: str
):
    """It is missed unless an entry was measured for the operation, these threads and this compiler."""
    use = found(lookup, configuration)
    assert (use.origin, use.reason) == (origin, reason)
    assert use.is_missed is (reason not in {"", "it is faster here than the library's entry"})


SPEC = LaunchTuning(flags=("--iree-codegen-tuning-spec-path=mine.mlir",))


@pytest.mark.parametrize(
    ("flags", "origin", "reason"),
    [
        (SPEC.flags, KernelOrigin.SPEC, "the tuning spec of BOO_TUNING_SPEC_PATH replaces the library"),
        ((), KernelOrigin.UNTUNED, "what the tuning spec of BOO_TUNING_SPEC_PATH asks for does not compile"),
    ],
)
def test_with_a_tuning_spec_nothing_is_looked_up_and_so_nothing_is_missed(
    flags: tuple[str, ...], origin: KernelOrigin, reason: str
):
    use = use_of(Variant(Dispatch(PRODUCT, Default()), flags), SPEC, CPU, packs_weight=False)
    assert (use.origin, use.reason, use.is_missed) == (origin, reason, False)
    assert use.text == f"{origin.value}: {reason}"


ENTRY = KernelUse(PRODUCT, "tile_config_x", KernelOrigin.ENTRY)
MISSED = KernelUse(CONV, "tile_config_y", KernelOrigin.PREDICTED, "the library has no entry", True)


@pytest.mark.parametrize(
    ("uses", "left", "text"),
    [
        ((ENTRY, ENTRY), 0, "2 regions: 2 exact entry; nothing is left to tune"),
        (
            (MISSED, ENTRY, MISSED),
            2,
            "5 regions: 1 exact entry, 2 predicted, 2 left to torch; "
            "1 operation to tune (dispatch-profiler explain, dispatch_profiler.misses())",
        ),
        ((), 3, "3 regions: 3 left to torch; dispatch-profiler explain says why"),
        ((), 0, "0 regions; dispatch-profiler explain says why"),
    ],
)
def test_a_summary_counts_regions_by_origin_and_says_what_to_do(
    uses: tuple[KernelUse, ...], left: int, text: str
):
    SESSION.clear("uses")
    for each in uses:
        USES.add(each, packs_weight=False)
    assert summary_of([(each.operation, False) for each in uses], left) == text
    SESSION.clear("uses")


def test_the_fastest_known_form_is_untuned():
    form = fastest_form(CONV, CPU)
    assert isinstance(form, Formed)
    assert found(TunedLookup(CONV), form, CONV).origin is KernelOrigin.UNTUNED


@pytest.fixture
def launched(kernels_of_this_run: None):
    """`launched(operation)`: its kernel is loaded as a launch does."""
    SESSION.clear("uses", "kernels")

    def load(operation: Operation) -> None:
        OperationKernels(operation, operation.name, launch_settings()).kernel(DeviceUri.parse("local-task"))

    yield load
    SESSION.clear("uses", "kernels")


def test_launches_without_an_entry_are_a_workload(launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the process, and in a file; an operation counts once in a process."""
    file = tmp_path / "missed.yaml"
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "")
    monkeypatch.setenv("BOO_MISSES", str(file))
    for _ in range(2):
        launched(PRODUCT)
        SESSION.clear("kernels")
    launched(replace(PRODUCT, m=32))
    assert misses().operations == (PRODUCT, replace(PRODUCT, m=32))
    reading = read_workload(file)
    assert reading.workload.operations == misses().operations and not reading.damaged
    assert [each.count for each in reading.workload.entries] == [1, 1]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_launches_with_arrays_of_any_library_have_a_reason(kernels_of_this_run: None, library: str):
    ones = pytest.importorskip(library).ones
    SESSION.clear()
    signature = GEMMSignature(a_shape=(64, 32), b_shape=(32, 128))
    type_ = np.float32 if library == "numpy" else ones(1).dtype
    get_launchable(signature)(ones((64, 32), dtype=type_), ones((32, 128), dtype=type_))
    (use,) = USES.every()
    assert (use.operation, use.reason, use.is_missed) == (PRODUCT, "the library has no entry", True)


def test_without_the_variable_nothing_is_written(launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (folder := tmp_path / "here").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("BOO_MISSES", raising=False)
    launched(PRODUCT)
    assert misses().entries and not list(folder.iterdir())


def test_a_file_that_cannot_be_written_is_a_warning(
    launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
):
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "")
    monkeypatch.setenv("BOO_MISSES", str(tmp_path / "no" / "folder.yaml"))
    launched(PRODUCT)
    assert "BOO_MISSES: " in caplog.text and "cannot be written: No such file or directory" in caplog.text


def test_an_entry_of_a_library_is_no_miss(launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use = KernelUse(PRODUCT, "tile_config_tuned", KernelOrigin.ENTRY)
    file = tmp_path / "missed.yaml"
    monkeypatch.setenv("BOO_MISSES", str(file))
    USES.add(use, packs_weight=False)
    assert USES.every() == (use,) and not misses().entries and not file.exists()


def add_some(path: Path, size: int) -> None:
    for number in range(20):
        append_workload([WorkloadEntry(Matmul(size, 8 + number, 8))], path)


def test_processes_add_to_one_file(tmp_path: Path):
    path = tmp_path / "missed.yaml"
    processes = [
        multiprocessing.get_context("fork").Process(target=add_some, args=(path, size)) for size in (8, 8, 16)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    reading = read_workload(path)
    assert not reading.damaged
    assert sorted(each.count for each in reading.workload.entries) == 20 * [1] + 20 * [2]


def test_the_header_is_written_once_whoever_opens_the_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another process writes between the opening of the file and its lock."""
    import fcntl

    path, whole, calls = tmp_path / "missed.yaml", fcntl.flock, []

    def late(file: object, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            append_workload([WorkloadEntry(Matmul(8, 8, 8))], path)
        whole(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    append_workload([WorkloadEntry(Matmul(16, 8, 8))], path)
    assert path.read_text().count("format:") == 1
    assert [each.operation for each in read_workload(path).workload.entries] == [
        Matmul(8, 8, 8),
        Matmul(16, 8, 8),
    ]


def test_a_workload_without_entries_can_be_appended_to(tmp_path: Path):
    from dispatch_profiler import write_workload

    path = tmp_path / "workload.yaml"
    write_workload(Workload(()), path)
    append_workload([WorkloadEntry(PRODUCT)], path)
    assert read_workload(path).workload.operations == (PRODUCT,)


def test_entries_are_appended_to_what_was_written_at_once(tmp_path: Path):
    from dispatch_profiler import write_workload

    path = tmp_path / "workload.yaml"
    first = Workload((WorkloadEntry(PRODUCT, 3, "a"),))
    write_workload(first, path)
    biased = replace(PRODUCT, epilogue=Epilogue.parse("bias"))
    append_workload([WorkloadEntry(PRODUCT, 2), WorkloadEntry(biased)], path)
    entries = read_workload(path).workload.entries
    assert [(each.operation, each.count) for each in entries] == [(PRODUCT, 5), (biased, 1)]
