"""No figure is reported that the machine cannot reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.operations import ELEMENT_TYPES, ElementTypes, Matmul
from dispatch_profiler.profiler.evaluation import evaluator, hardware
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.from_manifest import TreeCandidates
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement import peaks
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.measurement.peaks import Peaks, PeaksFile, measure_peaks
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.runtime import NullDevice
from dispatch_profiler.targets import HostCpu

#: 100 GFLOP/s in f32, 50 in f64, 10 GB/s.
KNOWN = Peaks({"f32": 100e9, "f64": 50e9}, 10e9)
LOWER = Peaks({"f32": 10e9, "f64": 60e9}, 1e9)


@pytest.mark.parametrize(
    ("types", "milliseconds"),
    [
        (ElementTypes("f32", "f32", "f32"), 1.0),
        (ElementTypes("f64", "f64", "f64"), 2.0),
        (ElementTypes("f16", "f16", "f32"), 0.5),  # half as wide: at most twice as fast
        (ElementTypes("i8", "i8", "i32"), 0.25),
    ],
    ids=lambda x: x.lhs if isinstance(x, ElementTypes) else "",
)
def test_the_limit_follows_from_the_operations_and_the_type(types: ElementTypes, milliseconds: float):
    """100 MFLOP: 2 * 500 * 500 * 200."""
    operation = Matmul(500, 500, 200, types)

    assert KNOWN.limit_ms(operation) == pytest.approx(milliseconds)
    assert KNOWN.is_plausible(operation, milliseconds)
    assert KNOWN.is_plausible(operation, 0.81 * milliseconds)  # BLAS does not reach the limit quite
    assert not KNOWN.is_plausible(operation, 0.79 * milliseconds)


def test_from_cold_caches_the_bytes_take_time_too():
    """64 x 64 x 64 in f32: 0.52 MFLOP are 5.2 us at 100 GFLOP/s, 48 KiB are 4.9 us at 10 GB/s."""
    square, vector = Matmul(64, 64, 64), Matmul(1, 64, 64)

    assert KNOWN.limit_ms(square, Mode.COLD) == KNOWN.limit_ms(square) == pytest.approx(0.00524288)
    assert KNOWN.limit_ms(vector, Mode.COLD) == pytest.approx((64 * 64 + 2 * 64) * 4 / 10e6)
    assert KNOWN.limit_ms(vector) == pytest.approx(2 * 64 * 64 / 100e6)


def test_the_higher_of_two_measurements_counts():
    assert KNOWN.best_of(LOWER) == LOWER.best_of(KNOWN) == Peaks({"f32": 100e9, "f64": 60e9}, 10e9)


def test_what_was_measured_once_is_kept(tmp_path: Path):
    answers = iter([LOWER, KNOWN])
    file = PeaksFile(tmp_path, "this", lambda: next(answers))

    assert file.get() == file.get() == LOWER
    assert PeaksFile(tmp_path, "this", lambda: next(answers)).get() == LOWER  # by the next run too
    assert file.again() == LOWER.best_of(KNOWN)
    assert file.get() == LOWER.best_of(KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"flops_per_second": 3, "bytes_per_second": 1}',
        '{"flops_per_second": {"f32": 1}, "bytes_per_second": 0}',
    ],
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str):
    folder = tmp_path / "machines"
    PeaksFile(folder, "this", lambda: KNOWN).get()
    next(folder.iterdir()).write_text(text)

    assert PeaksFile(folder, "this", lambda: LOWER).get() == LOWER


def test_wide_kernels_of_blas_are_tried_only_where_the_cpu_has_them(monkeypatch):
    for features, tried in (({"avx2"}, 1), ({"avx2", "avx512f"}, 2)):
        monkeypatch.setattr(peaks, "host_cpu", lambda known=features: HostCpu("some", frozenset(known)))
        assert len(list(peaks.environments())) == tried
        assert all(each["OPENBLAS_NUM_THREADS"] == "1" for each in peaks.environments())


@pytest.mark.alone
def test_this_machine_has_ceilings():
    found = measure_peaks()

    assert 1e8 < found.flops_per_second["f64"] <= found.flops_per_second["f32"] * 1.5 < 1e15
    assert 1e8 < found.bytes_per_second < 1e13
    a = np.ones((8, 8))
    assert (a @ a == 8).all()


def evaluated_with_peak(
    peak: float, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[list[Record], list[float]]:
    """Records of a null tree on a machine with this peak, and the peak as often as it was measured."""
    measured = []

    def measured_now() -> Peaks:
        measured.append(peak)
        return Peaks({"f32": peak, "f64": peak}, 1e12)

    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.device_worker.open_kernels",
        lambda *_: DeviceKernels(NullDevice()),
    )
    monkeypatch.setattr(hardware, "measure_peaks", measured_now)
    pairs = load_manifest(Tree(folder)).dispatches()
    with Evaluator(EvaluatorOptions("local-null", peaks=tmp_path / "machines")) as running:
        return list(running.records(TreeCandidates(Tree(folder)).candidates(pairs))), measured


@pytest.mark.usefixtures("in_process")
def test_an_algorithm_with_fewer_operations_has_a_lower_limit(null_tree, monkeypatch, tmp_path):
    """1.2 MFLOP at 1 GFLOP/s take 1.2 ms; Winograd's products are 4 times fewer."""
    Path("mine.yaml").write_text("configurations: [{form: winograd}, {form: im2col}]")
    shape = ("--conv-h=16", "--conv-w=16", "--conv-c=16", "--conv-k=16", "--conv-padding=1", "--lhs=f32")
    folder = null_tree(*shape, "--configurations=mine.yaml", faults={"*": {"time_ms": 0.5}})
    records, _ = evaluated_with_peak(1e9, folder, monkeypatch, tmp_path)
    found = {record.dispatch.configuration.name: record for record in records}
    direct, formed = 2 * 16 * 16 * 9 * 16 * 16, 2 * 36 * 16 * 16 * 16
    for name, flops, verdict in (
        ("tile_config_default", direct, Verdict.IMPLAUSIBLE),
        ("tile_config_im2col_default", direct, Verdict.IMPLAUSIBLE),
        ("tile_config_winograd_default", formed, Verdict.SUCCESS),
    ):
        assert found[name].verdict is verdict, name
        assert found[name].limit_ms == pytest.approx(flops / 1e6)


@pytest.mark.usefixtures("in_process")
def test_the_type_that_a_kernel_multiplies_limits_it(null_tree, monkeypatch, tmp_path):
    """f16 is assumed to be twice as fast as f32."""
    (usual, *_), _ = evaluated_with_peak(1e9, null_tree(), monkeypatch, tmp_path)
    monkeypatch.setattr(Default, "multiplied", lambda *_: ELEMENT_TYPES["f16"])
    (halved, *_), _ = evaluated_with_peak(1e9, null_tree(), monkeypatch, tmp_path)
    assert halved.limit_ms == pytest.approx(usual.limit_ms / 2)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("peak", "error_ms", "verdict"),
    [(1e9, 0.0, "Implausible"), (1e9, 1e-4, "Implausible"), (1e9, 1.0, "SUCCESS"), (1e15, 0.0, "SUCCESS")],
)
def test_a_figure_below_the_limit_is_implausible(
    null_tree, monkeypatch, tmp_path, peak: float, error_ms: float, verdict: str
):
    """The null device takes the times that it is given; here it stands for this machine.

    A figure that is below the limit by less than the overhead may be off is not.
    """
    whole = evaluator.joined
    monkeypatch.setattr(evaluator, "joined", lambda *each: replace(whole(*each), overhead_error_ms=error_ms))
    (first, *_), measured = evaluated_with_peak(peak, null_tree(), monkeypatch, tmp_path)

    assert first.verdict.value == verdict
    assert first.limit_ms == pytest.approx(1e3 * first.dispatch.operation.flops / peak)
    assert first.peaks == Peaks({"f32": peak, "f64": peak}, 1e12)
    if first.verdict is Verdict.IMPLAUSIBLE:
        assert first.measurement is None
        assert "but this machine needs at least" in first.reason
        assert len(measured) > 1  # it was measured once more before anything was said
