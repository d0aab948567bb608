"""Peaks of an NVIDIA GPU: measured with torch if it is installed, otherwise theoretical.

Measured: cuBLAS on random matrices of 4096 x 4096, the best of several runs, and copies within the GPU's
memory. Theoretical: FLOP per multiprocessor and cycle, by compute capability, times the multiprocessors,
clocks and memory bus that the driver reports. No kernel reaches these.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.runtime.cuda_driver import CudaGpu

#: Compute capability -> FLOP per multiprocessor and cycle (2 per multiply-add, dense), by the type of the
#: operands; on tensor cores where these support it. NVIDIA's architecture whitepapers (P100, V100, Turing,
#: A100, GA102, Ada, H100, Blackwell) and the table "Arithmetic Instructions" of the CUDA programming guide.
_FLOP_PER_CYCLE: Mapping[tuple[int, int], Mapping[str, int]] = {
    (6, 0): {"f64": 64, "f32": 128, "f16": 256, "i8": 128},
    (6, 1): {"f64": 8, "f32": 256, "f16": 4, "i8": 1024},
    (7, 0): {"f64": 64, "f32": 128, "f16": 1024, "i8": 512},
    (7, 5): {"f64": 4, "f32": 128, "f16": 1024, "i8": 2048},
    (8, 0): {"f64": 128, "f32": 128, "f16": 2048, "i8": 4096},
    (8, 6): {"f64": 4, "f32": 256, "f16": 1024, "i8": 2048},
    (8, 9): {"f64": 4, "f32": 256, "f16": 1024, "i8": 2048},
    (9, 0): {"f64": 256, "f32": 256, "f16": 4096, "i8": 8192},
    (10, 0): {"f64": 256, "f32": 256, "f16": 8192, "i8": 16384},
    (12, 0): {"f64": 4, "f32": 256, "f16": 1024, "i8": 2048},
}
#: Types that are as fast as another.
_AS_FAST_AS = {"bf16": "f16", "f8E4M3FN": "i8", "i32": "f32"}
_VERSION = 1


def gpu_key(gpu: CudaGpu) -> str:
    """The cache key of the peaks of one GPU."""
    how = "torch" if importlib.util.find_spec("torch") else "stated"
    return f"gpu {_VERSION} {how} {gpu}"


def stated_peaks(gpu: CudaGpu) -> Peaks:
    """Theoretical peaks of `gpu`. An unknown compute capability counts as the fastest known one."""
    known = _FLOP_PER_CYCLE.get(gpu.capability) or _fastest()
    cycles = gpu.multiprocessors * gpu.clock_hz
    flops = {name: cycles * each for name, each in known.items()}
    flops |= {name: flops[other] for name, other in _AS_FAST_AS.items()}
    capability = f"compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    if gpu.capability not in _FLOP_PER_CYCLE:
        capability += " (unknown: peaks of the fastest known one)"
    source = (
        f"{gpu.multiprocessors} multiprocessors at {gpu.clock_hz / 1e6:.0f} MHz of {gpu.name}, {capability}"
    )
    return Peaks(flops, gpu.bytes_per_second, source)


def _fastest() -> dict[str, int]:
    names = next(iter(_FLOP_PER_CYCLE.values()))
    return {name: max(known[name] for known in _FLOP_PER_CYCLE.values()) for name in names}
