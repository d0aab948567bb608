"""References of large operations, and hardware peaks, computed by torch on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dispatch_profiler.operations import Contraction, ElementTypes, Epilogue
from dispatch_profiler.profiler.providers.in_torch._base import torch_family
from dispatch_profiler.profiler.providers.threads import iree_threads
from dispatch_profiler.profiler.providers.torch_library import (
    TYPES,
    TorchLibrary,
    on_device,
    torch_api,
    translated,
)

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
        self._device = TorchLibrary(device, iree_threads(device)).device

    def __call__(
        self,
        operation: Contraction,
        lhs: np.ndarray,
        rhs: np.ndarray,
        dtype: np.dtype,
        *,
        of_magnitudes: bool = False,
    ) -> np.ndarray:
        """See `ContractFunction`. Raises WorkerOutOfMemory if the GPU runs out of memory.

        Operands and sums are copied in their own types: they are widened and rounded on the GPU.
        """
        wide = replace(  # type: ignore[type-var]
            operation, types=ElementTypes("f64", "f64", "f64"), epilogue=Epilogue()
        )
        try:
            factors = [
                on_device(array, tensor.type, self._device).to(torch_api.float64)
                for array, tensor in zip((lhs, rhs), operation.operands, strict=False)
            ]
            with torch_api.backends.cudnn.flags(enabled=False):
                sums = self._sums(wide, [each.abs() for each in factors] if of_magnitudes else factors)
            found: np.ndarray = sums.to(TYPES[f"f{8 * dtype.itemsize}"]).cpu().numpy()
        except RuntimeError as error:
            raise translated(error) from error
        return found.reshape(wide.result.shape)

    def _sums(self, operation: Contraction, factors: list[Any]) -> Any:
        family = torch_family(operation)
        result = torch_api.empty(operation.result.shape, dtype=torch_api.float64, device=self._device)
        handles = family.handles(torch_api, operation, self._device, [*factors, result])
        return family.computation(torch_api, operation, self._device)(*handles)


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
