"""What a GPU can do at best, against what its makers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import TritonTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.profiler.evaluation.hardware import gpu_peaks
from dispatch_profiler.profiler.measurement.gpu_peaks import gpu_key, stated_peaks
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.runtime.cuda_driver import CudaGpu, find_gpu

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
