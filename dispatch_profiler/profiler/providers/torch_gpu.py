"""References of large operations, and hardware peaks, computed by torch on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dispatch_profiler.operations import Contraction, ElementTypes, Epilogue
from dispatch_profiler.profiler.providers.threads import iree_threads
from dispatch_profiler.profiler.providers.torch_library import TYPES, TorchLibrary, torch_api

_SIZE = 4096
_COPIED_BYTES = 2**30
#: Approximate duration of each measurement, on fast and slow GPUs alike.
_SECONDS = 0.02
_TRIES = 5


class GpuContraction:
    """Contractions in float64 on a GPU: plain sums of products, so exact for whole numbers.

    cuDNN is disabled, because its fast algorithms (Winograd, FFT) transform the operands first. Raises
    UsageError if this torch cannot use the device with the URI `device`.
    """

    def __init__(self, device: str) -> None:
        self._library = TorchLibrary(device, iree_threads(device))

    def __call__(self, operation: Contraction, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """See `Contraction.contract`. Raises WorkerOutOfMemory if the GPU runs out of memory."""
        wide = replace(  # type: ignore[type-var]
            operation, types=ElementTypes("f64", "f64", "f64"), epilogue=Epilogue()
        )
        arrays = [array.astype(np.float64) for array in (lhs, rhs)]
        with torch_api.backends.cudnn.flags(enabled=False):
            (sums,) = self._library.bind("", self._library.put(wide, arrays)).run()
            return sums


def peak_rates(device: str) -> tuple[dict[str, float], float]:
    """Peak FLOP/s of matrix products by operand type, and peak bytes/s of copies.

    Omits types for which torch has no product on this GPU. Raises the same errors as `TorchLibrary`.
    """
    gpu, flops = TorchLibrary(device, iree_threads(device)).device, {}
    with torch_api.cuda.device(gpu):
        for name in ("f64", "f32", "f16", "bf16", "i8", "f8E4M3FN"):
            with contextlib.suppress(RuntimeError):
                flops[name] = 2 * _SIZE**3 / _quickest(_product(name, gpu))
        source, target = (torch_api.ones(_COPIED_BYTES, dtype=torch_api.uint8, device=gpu) for _ in range(2))
        return flops, 2 * _COPIED_BYTES / _quickest(lambda: target.copy_(source))


def _product(name: str, gpu: Any) -> Callable[[], object]:
    dtype = TYPES[name]
    lhs, rhs = (torch_api.randint(-8, 9, (_SIZE, _SIZE), device=gpu).to(dtype) for _ in range(2))
    if name == "i8":
        return lambda: torch_api._int_mm(lhs, rhs.t())
    if name == "f8E4M3FN":
        one = torch_api.ones((), device=gpu)
        return lambda: torch_api._scaled_mm(lhs, rhs.t(), one, one, out_dtype=torch_api.bfloat16)
    result = torch_api.empty_like(lhs)
    return lambda: torch_api.matmul(lhs, rhs, out=result)


def _quickest(work: Callable[[], object]) -> float:
    """Seconds that `work` takes on the GPU, measured with events; the best of several tries."""
    begin, end = (torch_api.cuda.Event(enable_timing=True) for _ in range(2))

    def seconds(times: int) -> float:
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / times

    seconds(1)
    times = max(1, round(_SECONDS / seconds(1)))
    return min(seconds(times) for _ in range(_TRIES))
