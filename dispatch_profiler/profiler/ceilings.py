"""What this machine can do at best, measured once: no kernel is faster, and none is reported as if.

FLOP/s are those of numpy's BLAS on matrices that stay in the caches, for f32 and f64; a narrower type
may reach as many times more as it is narrower (vector units with dot products of bf16 or i8 do).
Bytes/s are those of a copy by all cores between arrays that no cache holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.files import sha256, write_atomic
from dispatch_profiler.operations import ElementType, Operation
from dispatch_profiler.profiler.machine import usable_cores
from dispatch_profiler.targets import host_cpu

#: A figure may be so much better than the ceiling: BLAS does not reach it quite.
_SLACK = 1.25
_SIZE = 1024
_COPIED_BYTES = 128 * 2**20
_TRIES = 20


@dataclass(frozen=True)
class Ceilings:
    """Of one machine: FLOP/s of products by element type (`f32`, `f64`), and bytes/s of its memory."""

    flops_per_second: Mapping[str, float]
    bytes_per_second: float

    def flops_of(self, type_: ElementType) -> float:
        """FLOP/s that operands of this type may reach at most."""
        if type_.name in self.flops_per_second:
            return self.flops_per_second[type_.name]
        return self.flops_per_second["f32"] * 4 / type_.bytes

    def limit_ms(self, operation: Operation) -> float:
        """Milliseconds that `operation` takes at least when its operands are in the caches."""
        return 1e3 * operation.flops / max(self.flops_of(tensor.type) for tensor in operation.inputs[:2])

    def roof(self, type_: ElementType, intensity: float) -> float:
        """FLOP/s that are possible at `intensity` FLOP/byte, all bytes from memory (the roofline)."""
        return min(self.flops_of(type_), intensity * self.bytes_per_second)

    def is_plausible(self, operation: Operation, milliseconds: float) -> bool:
        """Can this machine do `operation` in that time?"""
        return milliseconds * _SLACK >= self.limit_ms(operation)

    def best_of(self, other: Ceilings) -> Ceilings:
        """The higher of each: a disturbance only lowers what is measured."""
        flops = {
            name: max(value, other.flops_per_second.get(name, 0.0))
            for name, value in self.flops_per_second.items()
        }
        return Ceilings(flops, max(self.bytes_per_second, other.bytes_per_second))

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Ceilings:
        """What `asdict` wrote. Raises KeyError, TypeError, ValueError or AttributeError."""
        flops = {str(name): float(value) for name, value in data["flops_per_second"].items()}
        return Ceilings(flops, float(data["bytes_per_second"]))


def measure_ceilings() -> Ceilings:
    """Measure this machine, in about a second."""
    flops = {name: _flops(dtype) for name, dtype in (("f32", np.float32), ("f64", np.float64))}
    return Ceilings(flops, _bytes())


def _flops(dtype: type) -> float:
    factor: np.ndarray = np.ones((_SIZE, _SIZE), dtype)
    result = np.empty_like(factor)
    return 2 * _SIZE**3 / _least(lambda: np.matmul(factor, factor, out=result))


def _bytes() -> float:
    cores = usable_cores()
    source, target = (np.ones(_COPIED_BYTES, np.uint8) for _ in range(2))
    parts = list(zip(np.array_split(source, cores), np.array_split(target, cores), strict=True))
    with ThreadPoolExecutor(cores) as pool:
        return 2 * _COPIED_BYTES / _least(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), parts)))


def _least(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries."""
    work()
    seconds = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# -- kept on disk ----------------------------------------------------------------------------------


class CeilingFile:
    """The ceilings of this machine in `folder`, by its CPU and cores; measured if not known."""

    def __init__(self, folder: Path, measured: Callable[[], Ceilings] = measure_ceilings) -> None:
        cpu = f"{host_cpu().fingerprint} {usable_cores()}"
        self._path = folder / f"{sha256(cpu.encode())[:16]}.json"
        self._measured = measured

    def get(self) -> Ceilings:
        """What is known, or what is measured now."""
        return self._known() or self.again()

    def again(self) -> Ceilings:
        """Measure once more; the better of what was known and what is found."""
        known, found = self._known(), self._measured()
        best = found if known is None else found.best_of(known)
        write_atomic(self._path, json.dumps(asdict(best)))
        return best

    def _known(self) -> Ceilings | None:
        try:
            return Ceilings.from_dict(json.loads(self._path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
