"""No figure is reported that the machine cannot reach; what a GPU can do, and when it is throttled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dispatch_profiler.configurations import Default, TritonTiles
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.operations import ELEMENT_TYPES, ElementTypes, Matmul
from dispatch_profiler.profiler.evaluation import evaluator, hardware
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.hardware import gpu_peaks
from dispatch_profiler.profiler.measurement import peaks
from dispatch_profiler.profiler.measurement.gpu_monitor import (
    GpuMonitor,
    GpuState,
    open_monitor,
    throttle_warning,
)
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.measurement.peaks import (
    Peaks,
    PeaksFile,
    gpu_key,
    measure_peaks,
    stated_peaks,
)
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.runtime import NullDevice
from dispatch_profiler.runtime.cuda_driver import CudaGpu, find_gpu
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
    monkeypatch.setattr(hardware, "measure_flops", lambda: {"f32": peak, "f64": peak})
    monkeypatch.setattr(hardware, "environments", lambda: [{}])
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
    whole = evaluator.progress

    def progress(*given):
        found, end = whole(*given)
        return replace(found, overhead_error_ms=error_ms), end

    monkeypatch.setattr(evaluator, "progress", progress)
    (first, *_), measured = evaluated_with_peak(peak, null_tree(), monkeypatch, tmp_path)

    assert first.verdict.value == verdict
    assert first.limit_ms == pytest.approx(1e3 * first.dispatch.operation.flops / peak)
    assert first.peaks == Peaks({"f32": peak, "f64": peak}, 1e12)
    if first.verdict is Verdict.IMPLAUSIBLE:
        assert first.measurement is None
        assert "but this machine needs at least" in first.reason
        assert len(measured) > 1  # it was measured once more before anything was said


@pytest.mark.usefixtures("in_process")
def test_peaks_are_measured_again_once_for_all_dispatches(null_tree, monkeypatch, tmp_path):
    """It takes seconds, and kernels that are a little faster than BLAS would each wait for it."""
    shape = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    _, of_one = evaluated_with_peak(
        1e9, null_tree(*shape, "--default-config=only"), monkeypatch, tmp_path / "one"
    )
    records, measured = evaluated_with_peak(1e9, null_tree(), monkeypatch, tmp_path / "all")
    assert sum(each.verdict is Verdict.IMPLAUSIBLE for each in records) > 1
    assert len(measured) == len(of_one)


H200 = CudaGpu(0, "NVIDIA H200", "GPU-1", (9, 0), 132, 1.98e9, 62914560, 2.0 * 3.201e9 * 6016 / 8, "13.0")


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "mhz", "type_", "tflops"),
    [
        ((7, 0), 80, 1530, "f16", 125.0),
        ((7, 0), 80, 1530, "f64", 7.8),
        ((7, 5), 40, 1590, "f16", 65.0),
        ((8, 0), 108, 1410, "f16", 312.0),
        ((8, 0), 108, 1410, "bf16", 312.0),
        ((8, 0), 108, 1410, "f32", 19.5),
        ((8, 0), 108, 1410, "f64", 19.5),
        ((8, 0), 108, 1410, "i8", 624.0),
        ((8, 9), 128, 2520, "f16", 330.3),
        ((8, 9), 128, 2520, "f8E4M3FN", 660.6),
        ((9, 0), 132, 1830, "f16", 989.4),
        ((9, 0), 132, 1980, "f32", 66.9),
        ((9, 0), 132, 1980, "f64", 66.9),
    ],
)
def test_ceilings_follow_the_data_sheets(capability, multiprocessors, mhz, type_: str, tflops: float):
    """V100 SXM2, T4, A100, RTX 4090 (sums in f16), H100 SXM, by NVIDIA's own tables."""
    gpu = replace(H200, capability=capability, multiprocessors=multiprocessors, clock_hz=1e6 * mhz)

    found = stated_peaks(gpu)

    assert found.flops_per_second[type_] == pytest.approx(1e12 * tflops, rel=0.01)


def test_bytes_follow_from_the_bus_and_the_source_is_said():
    """An H200 has 4.8 TB/s."""
    found = stated_peaks(H200)

    assert found.bytes_per_second == pytest.approx(4.8e12, rel=0.01)
    assert found.source == "132 multiprocessors at 1980 MHz of NVIDIA H200, compute capability 9.0"


def test_a_gpu_that_is_not_known_is_taken_for_the_fastest():
    unknown = stated_peaks(replace(H200, capability=(99, 0)))

    assert all(
        unknown.flops_per_second[name] >= rate for name, rate in stated_peaks(H200).flops_per_second.items()
    )
    assert "99.0 (unknown: peaks of the fastest known one)" in unknown.source


def test_what_no_gpu_reaches_is_implausible():
    """2 * 8192**3 FLOP in f16 take 1.03 ms at 1070 TFLOP/s."""
    operation = Matmul(8192, 8192, 8192, ElementTypes("f16", "f16", "f16"))
    found = stated_peaks(H200)

    assert found.limit_ms(operation) == pytest.approx(1.0273, rel=1e-3)
    assert found.is_plausible(operation, 1.4)
    assert not found.is_plausible(operation, 0.5)


@pytest.mark.parametrize(
    ("precision", "milliseconds"),
    [("ieee", 0.2568), ("bf16x6", 0.0963), ("tf32x3", 0.0482), ("tf32", 0.01606)],
)
def test_f32_in_parts_is_limited_by_the_tensor_cores(precision: str, milliseconds: float):
    """1.7e10 FLOP at 66.9 TFLOP/s, or 6 and 3 times as many at 1070 TFLOP/s."""
    operation = Matmul(2048, 2048, 2048)
    dispatch = Dispatch(operation, TritonTiles(tile=(128, 64, 32), precision=precision))
    found = stated_peaks(H200)
    limit = found.limit_ms(operation, Mode.WARM, dispatch.flops, dispatch.multiplied)

    assert limit == pytest.approx(milliseconds, rel=2e-3)
    assert found.is_plausible(operation, 0.2, Mode.WARM, dispatch.flops, dispatch.multiplied) == (
        precision != "ieee"
    )


def test_gpus_do_not_share_what_is_kept():
    assert gpu_key(H200) != gpu_key(replace(H200, name="NVIDIA H100"))


def test_what_is_measured_stays_below_what_is_stated():
    gpu = find_gpu("cuda")
    if gpu is None:
        pytest.skip("no NVIDIA GPU, or no driver for it")
    measured, stated = gpu_peaks("cuda"), stated_peaks(gpu)

    assert measured.bytes_per_second <= stated.bytes_per_second
    for name, rate in measured.flops_per_second.items():
        assert 0.0 < rate <= stated.flops_per_second[name], name


COOL = GpuState(1980, 1980, 3201, 300.0, 700.0, 45, slowed_by_power=6.0, slowed_by_heat=0.0)
CAPPED = GpuState(1605, 1980, 3201, 699.0, 700.0, 60, slowed_by_power=6.2, slowed_by_heat=0.0)
HOT = GpuState(1200, 1980, 3201, 500.0, 700.0, 88, slowed_by_power=6.2, slowed_by_heat=0.5)
SILENT = GpuState(1980, 1980)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (COOL, COOL, ""),
        (
            COOL,
            CAPPED,
            "throttled by its power limit of 700 W during the measurement (SM clock 1605 of 1980",
        ),
        (CAPPED, HOT, "throttled by heat (88 °C) during"),
        (COOL, HOT, "its power limit of 700 W and heat (88 °C)"),
        (SILENT, CAPPED, ""),
        (None, HOT, ""),
    ],
)
def test_a_gpu_that_was_slowed_down_is_told(before, after, said: str):
    warning = throttle_warning(before, after)

    assert said in warning
    assert bool(warning) == bool(said)


class Nvml:
    """NVML of a GPU that tells its clocks and its power, and nothing else."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 162324

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> SimpleNamespace:
        return SimpleNamespace(violationTime=(6203802048, 0)[policy])

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object) -> None:
            raise self.NVMLError(name)

        return refuse


def test_what_is_not_told_is_left_out():
    """Milliwatts become watts, nanoseconds seconds."""
    monitor = GpuMonitor(Nvml(), "handle")

    assert monitor.read() == GpuState(
        sm_mhz=1980, memory_mhz=3201, watts=162.324, slowed_by_power=6.203802048, slowed_by_heat=0.0
    )
    assert monitor.driver == ""


def test_a_fresh_reading_is_that_of_now(monkeypatch):
    """It takes milliseconds to ask; an old one is asked for again, and so is one that must be of now."""
    asked: list[str] = []
    monkeypatch.setattr(
        Nvml, "nvmlDeviceGetPowerUsage", lambda _, handle: asked.append(handle) or 1000 * len(asked)
    )
    monitor = GpuMonitor(Nvml(), "handle")

    assert [monitor.read(60.0).watts, monitor.read(60.0).watts] == [1.0, 1.0]
    assert [monitor.read().watts, monitor.read(60.0).watts] == [2.0, 2.0]


@pytest.mark.parametrize("uri", ["local-task", "null", "hip://0", "cuda://4096", "cuda://GPU-none", ""])
def test_no_gpu_of_nvidia_is_no_error(uri: str):
    assert find_gpu(uri) is None
    assert open_monitor(uri) is None
