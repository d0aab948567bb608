"""Peak FLOP/s and bandwidth of a device, measured once. Results beyond them are rejected as implausible.

This module measures CPUs, `gpu_peaks` GPUs. FLOP/s are measured with numpy's BLAS on matrices that stay in
the caches, for f32 and f64; a narrower type may be faster by the ratio of widths (vector units with dot
products of bf16 or i8 are). Bytes/s are measured with copies between arrays that no cache holds.

Both are the sum over the cores, all working at once, of each core's best few milliseconds: another
process that occasionally takes a core does not lower them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, number, parse_json, text
from dispatch_profiler.files.private_files import read_private, write_private
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import ElementType, Operation
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.runtime._base import seconds_of
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.cuda_driver import CudaGpu
from dispatch_profiler.targets import host_cpu

#: A result may exceed the peak by this factor, because BLAS does not quite reach it.
_SLACK = 1.25
#: One BLAS thread for each thread of this module.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_SIZE = 512
_COPIED_BYTES = 128 * 2**20
_PART_BYTES = 4 * 2**20
_SECONDS = 0.15
#: The least FLOP/s and bytes/s of a working device.
_LEAST = 1e-3
_LARGEST_FILE = 2**16
#: Version of the method: peaks of other versions are not used.
_VERSION = 3


@dataclass(frozen=True)
class Peaks:
    """Peaks of one device: FLOP/s of products by element type, and bytes/s of its memory.

    `source` states where they come from; empty for a CPU measured as this module describes.
    """

    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    source: str = ""

    def flops_of(self, type_: ElementType) -> float:
        """Peak FLOP/s for operands of this type."""
        if type_.multiplied_as in self.flops_per_second:
            return self.flops_per_second[type_.multiplied_as]
        return self.flops_per_second["f32"] * 4 / type_.bytes

    def limit_ms(
        self,
        operation: Operation,
        mode: Mode = Mode.WARM,
        flops: int | None = None,
        type_: ElementType | None = None,
    ) -> float:
        """Least milliseconds that `operation` takes: for its FLOP and, from cold caches, its bytes.

        `flops` and `type_` replace the operation's, for a kernel with another algorithm.
        """
        seconds = (operation.flops if flops is None else flops) / self.flops_of(
            type_ or operation.element_type
        )
        if mode is Mode.COLD:
            seconds = max(seconds, operation.bytes / self.bytes_per_second)
        return 1e3 * seconds

    def roof(self, type_: ElementType, intensity: float) -> float:
        """Attainable FLOP/s at `intensity` FLOP/byte, with all bytes from memory (the roofline)."""
        return min(self.flops_of(type_), intensity * self.bytes_per_second)

    def is_plausible(
        self,
        operation: Operation,
        milliseconds: float,
        mode: Mode = Mode.WARM,
        flops: int | None = None,
        type_: ElementType | None = None,
    ) -> bool:
        """Whether this device can do `operation` in that time."""
        return milliseconds * _SLACK >= self.limit_ms(operation, mode, flops, type_)

    def best_of(self, other: Peaks) -> Peaks:
        """The higher of both values of each field: a disturbance only lowers a measurement."""
        flops = {
            name: max(value, other.flops_per_second.get(name, 0.0))
            for name, value in self.flops_per_second.items()
        }
        return Peaks(flops, max(self.bytes_per_second, other.bytes_per_second), self.source)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Peaks:
        """Read what `asdict` wrote. Raises FieldError."""
        rates = mapping(data.get("flops_per_second"), "flops_per_second")
        flops = {name: number(rates, name, least=_LEAST) for name in dict.fromkeys(("f32", *rates))}
        return Peaks(flops, number(data, "bytes_per_second", least=_LEAST), text(data, "source", ""))


def environments() -> Iterator[dict[str, str]]:
    """Environments of the processes in which to call `measure_peaks`, then `measure_flops`; the best result counts."""
    yield _ENVIRONMENT
    if "avx512f" in host_cpu().features:
        # On a CPU that it does not know yet, OpenBLAS uses kernels of half the width.
        yield {**_ENVIRONMENT, "OPENBLAS_CORETYPE": "SKYLAKEX"}


def cpu_key() -> str:
    """The cache key of the peaks of this CPU."""
    return f"{_VERSION} {host_cpu().fingerprint} {len(usable_cores())}"


def measure_peaks() -> Peaks:
    """Measure this machine, in about a second."""
    return Peaks(measure_flops(), _bytes())


def measure_flops() -> dict[str, float]:
    """FLOP/s of products by element type, as in `measure_peaks`."""
    return {name: _flops(dtype) for name, dtype in (("f32", np.float32), ("f64", np.float64))}


def typical_flops() -> float:
    """FLOP/s of f32 products at present: as in `measure_peaks`, but with the median of each core, not its best."""
    return _flops(np.float32, statistics.median)


def _flops(dtype: type, of_core: Callable[[list[float]], float] = min) -> float:
    def work() -> Callable[[], object]:
        factor: np.ndarray = np.ones((_SIZE, _SIZE), dtype)
        result = np.empty_like(factor)
        return lambda: np.matmul(factor, factor, out=result)

    return _together(work, 2 * _SIZE**3, of_core)


def _bytes() -> float:
    copied = max(_COPIED_BYTES, 3 * last_level_cache_bytes()) // len(usable_cores())

    def work() -> Callable[[], object]:
        source, target = (np.ones(copied, np.uint8) for _ in range(2))
        parts = itertools.cycle(
            zip(*(array.reshape(-1, _PART_BYTES) for array in (source, target)), strict=True)
        )

        def copy() -> None:
            one, other = next(parts)
            np.copyto(other, one)

        return copy

    copied -= copied % _PART_BYTES
    return _together(work, 2 * _PART_BYTES, min)


def _together(
    work: Callable[[], Callable[[], object]], amount: float, of_core: Callable[[list[float]], float]
) -> float:
    """The sum over the cores of `amount` / seconds; `of_core` chooses among the seconds of a core's pieces."""
    cores = len(usable_cores())
    ready = threading.Barrier(cores)

    def chosen(_: int) -> float:
        piece = work()
        piece()
        ready.wait()
        seconds: list[float] = []
        end = time.perf_counter() + _SECONDS
        while not seconds or time.perf_counter() < end:
            seconds.append(seconds_of(piece))
        return of_core(seconds)

    with ThreadPoolExecutor(cores) as pool:
        return sum(amount / seconds for seconds in pool.map(chosen, range(cores)))


# -- cached on disk --------------------------------------------------------------------------------


class PeaksFile:
    """The peaks with this key, cached in `folder`; measured if missing."""

    def __init__(self, folder: Path, key: str, measured: Callable[[], Peaks]) -> None:
        self._path = folder / f"{sha256(key.encode())[:16]}.json"
        self._measured = measured

    def get(self) -> Peaks:
        """The cached peaks; measured now if missing."""
        return self._known() or self.again()

    def again(self) -> Peaks:
        """Measure again; returns and stores the better of the cached and the new peaks."""
        known, found = self._known(), self._measured()
        best = found if known is None else found.best_of(known)
        write_private(self._path, json.dumps(asdict(best)))
        return best

    def _known(self) -> Peaks | None:
        """The cached peaks."""
        try:
            return Peaks.from_dict(mapping(parse_json(read_private(self._path, _LARGEST_FILE))))
        except (UsageError, FieldError):
            return None  # measured again, and the file is replaced


# -- gpu peaks -------------------------------------------------------------------------------------

# Peaks of an NVIDIA GPU: measured with torch if it is installed, otherwise theoretical.
#
# Measured: cuBLAS on random matrices of 4096 x 4096, the best of several runs, and copies within the GPU's
# memory. Theoretical: FLOP per multiprocessor and cycle, by compute capability, times the multiprocessors,
# clocks and memory bus that the driver reports. No kernel reaches these.


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
_GPU_VERSION = 1


def gpu_key(gpu: CudaGpu) -> str:
    """The cache key of the peaks of one GPU."""
    how = "torch" if importlib.util.find_spec("torch") else "stated"
    return f"gpu {_GPU_VERSION} {how} {gpu}"


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
