"""PyTorch: oneDNN and MKL on a CPU, cuBLAS and cuDNN on a GPU. Of the providers, only this file imports torch.

Uses full precision everywhere: no TF32 and no sums in half precision, as the operations are defined.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, UsageError, WorkerOutOfMemory
from dispatch_profiler.operations import ElementType, Operation
from dispatch_profiler.operations import Tensor as ResultTensor
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.providers.in_torch._base import (
    TORCH_NAMES,
    Computation,
    Tensor,
    dtype_of,
    torch_family,
)
from dispatch_profiler.profiler.providers.protocol import NotSupported
from dispatch_profiler.profiler.providers.torch_graphs import GraphCache, GraphTurns
from dispatch_profiler.profiler.verification.poison import poison
from dispatch_profiler.runtime import DeviceUri, RunError
from dispatch_profiler.runtime._base import raw_clock
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.timing import seconds_of

try:
    import torch
except ImportError as error:
    raise MissingDependency(
        "the provider torch requires PyTorch",
        hint="python -m pip install 'torch>=2.6'",
    ) from error

#: torch as Any, because parts of it are untyped.
torch_api: Any = torch
#: Our names of element types -> torch's.
TYPES = {name: dtype_of(torch, name) for name in TORCH_NAMES}
#: Matches torch's messages for a missing kernel.
_LACKS = r"not implemented|[Uu]nsupported|needs to be"
#: Driver of the device URI -> attribute of torch.version that is set if torch was built for it.
_GPU_BUILDS = {"cuda": "cuda", "hip": "hip", "rocm": "hip"}


class TorchLibrary:
    """See `Library`."""

    def __init__(self, device: str, threads: int) -> None:
        uri = DeviceUri.parse(device)
        if uri.is_gpu:
            build = _GPU_BUILDS.get(uri.driver)
            if build is None:
                raise UsageError(
                    f"torch does not support the device {device}", hint="remove torch from --providers"
                )
            if getattr(torch.version, build) is None or not torch.cuda.is_available():
                raise UsageError(
                    f"this torch ({torch.__version__}) was built without {build}, but the device is {device}",
                    hint="install the build of PyTorch for this GPU, or remove torch from --providers",
                )
        self._device = torch.device("cuda", _index(device)) if uri.is_gpu else torch.device("cpu")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.benchmark = True  # choose the fastest algorithm

        self._graphs = GraphCache(torch_api.cuda, self._device)

    @property
    def repeats(self) -> bool:
        """See `Library.repeats`: on a GPU, in CUDA graphs."""
        return self._device.type == "cuda"

    def load_repeated(self, count: int) -> TorchGraphs:
        """See `Library.load_repeated`."""
        return TorchGraphs(self._graphs, self._device, count)

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return self._device

    @property
    def version(self) -> str:
        """See `Library.version`: `torch 2.13.0+cpu (oneDNN 3.12.0, MKL 2024.2)`."""
        built = torch.__config__.show()
        if self._device.type == "cuda":
            parts = [
                f"cuBLAS of CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
            ]
            parts += (
                [f"cuDNN {torch_api.backends.cudnn.version()}"]
                if torch_api.backends.cudnn.is_available()
                else []
            )
        else:
            named = (("oneDNN", r"MKL-DNN v([\d.]+)"), ("MKL", r"Math Kernel Library Version ([\d.]+)"))
            parts = [f"{name} {found[1]}" for name, text in named if (found := re.search(text, built))]
        return f"torch {torch.__version__} ({', '.join(parts) or 'no BLAS named'})"

    @property
    def cache_bytes(self) -> int:
        """See `Device.cache_bytes`."""
        if self._device.type == "cuda":
            return int(getattr(torch_api.cuda.get_device_properties(self._device), "L2_cache_size", 0))
        return last_level_cache_bytes()

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`."""
        return torch_family(operation).converts_weights_ahead(operation, self._device)

    def load(self, vmfb: bytes) -> TorchLibrary:
        """See `Library.load`."""
        return self

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Library.put`: operands as views in torch's order of axes, and memory for the result.

        Transposed matrices are read without a copy; filters have the layout that torch users choose.
        """
        arrays = [*inputs, *(poison(each.type, each.shape) for each in operation.results)]
        types = [each.type for each in (*operation.operands, *operation.results)]
        tensors = [_tensor(*each, self._device) for each in zip(arrays, types, strict=True)]
        handles = torch_family(operation).handles(torch_api, operation, self._device, tensors)
        return Operands(operation, handles)

    def bind(self, function: str, *operands: Operands) -> TorchCall:
        """See `Library.bind`."""
        return TorchCall(operands, self._device)


class TorchGraphs:
    """See `LoadedKernels`: `count` executions per call, in a CUDA graph."""

    def __init__(self, graphs: GraphCache, device: torch.device, count: int) -> None:
        self._graphs = graphs
        self._device = device
        self._count = count

    def bind(self, function: str, *operands: Operands) -> TorchGraphCall:
        """See `LoadedKernels.bind`."""
        compute = computation(operands[0].operation, self._device)
        try:
            graphs = [self._graphs.get(each, compute, self._count) for each in operands]
        except RuntimeError as error:
            raise _translated(error) from error
        return TorchGraphCall(operands[0], GraphTurns(torch_api.cuda, self._device, graphs), self._device)


class TorchGraphCall:
    """See `KernelCall`."""

    def __init__(self, operands: Operands, turns: GraphTurns, device: torch.device) -> None:
        self._operands = operands
        self._turns = turns
        self._device = device

    @property
    def now(self) -> Callable[[], float]:
        """See `KernelCall.now`."""
        return raw_clock

    def run(self) -> tuple[np.ndarray, ...]:
        """See `KernelCall.run`."""
        results = self._operands.operation.results
        try:
            found = _each(self._turns.first.result)
            _fill_with_poison(self._operands, self._device)
            # Convolutions and layer norms write to the graph's own memory.
            for memory, own in zip(found, self._operands.handles[-len(results) :], strict=True):
                memory.copy_(own.view(memory.shape))
            self._turns.replay_first()
            return tuple(_array(*each) for each in zip(found, results, strict=True))
        except RuntimeError as error:
            raise _translated(error) from error

    def time(self, calls: int) -> float:
        """See `KernelCall.time`."""
        try:
            return self._turns.time(calls)
        except RuntimeError as error:
            raise _translated(error) from error


class TorchCall:
    """See `KernelCall`. Eager. Products write to preallocated memory, which convolutions do not support."""

    def __init__(
        self, operands: Sequence[Operands], device: torch.device, compute: Computation | None = None
    ) -> None:
        self._first = operands[0]
        self._turns = itertools.cycle([each.handles for each in operands])
        self._device = device
        self._compute = compute or computation(self._first.operation, device)

    @property
    def now(self) -> Callable[[], float]:
        """See `KernelCall.now`."""
        return raw_clock

    def run(self) -> tuple[np.ndarray, ...]:
        """See `KernelCall.run`."""
        _fill_with_poison(self._first, self._device)
        try:
            found = _each(self._compute(*self._first.handles))
            return tuple(_array(*each) for each in zip(found, self._first.operation.results, strict=True))
        except RuntimeError as error:
            raise _translated(error) from error

    def time(self, calls: int) -> float:
        """See `KernelCall.time`; synchronizes with a GPU before and after."""
        try:
            self._wait()
            return seconds_of(self._compute, itertools.islice(self._turns, calls), wait=self._wait)
        except RuntimeError as error:
            raise _translated(error) from error

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _tensor(array: np.ndarray, type_: ElementType, device: torch.device) -> Tensor:
    """A copy on the device; numpy's bf16 and f8 are transferred as bits."""
    bits = np.ascontiguousarray(array).view(f"i{type_.bytes}")
    return torch.from_numpy(bits.copy()).view(TYPES[type_.name]).to(device)


def _each(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results of a computation, which returns a tuple only if it has several."""
    return found if isinstance(found, tuple) else (found,)


def _fill_with_poison(operands: Operands, device: torch.device) -> None:
    results = operands.operation.results
    for memory, result in zip(operands.handles[-len(results) :], results, strict=True):
        memory.copy_(_tensor(poison(result.type, result.shape), result.type, device))


def _array(found: Tensor, result: ResultTensor) -> np.ndarray:
    """A copy on the host."""
    bits = found.contiguous().view(getattr(torch, f"int{result.type.bits}")).cpu().numpy()
    return bits.view(result.type.dtype).reshape(result.shape).copy()


def computation(operation: Operation, device: torch.device) -> Computation:
    """See `TorchFamily.computation`. Raises NotSupported."""
    return torch_family(operation).computation(torch_api, operation, device)


def _translated(error: RuntimeError) -> Exception:
    """A torch error as ours: NotSupported for a missing kernel, WorkerOutOfMemory, or RunError."""
    message = f"torch: {str(error).splitlines()[0][:300]}"
    if isinstance(error, NotImplementedError) or re.search(_LACKS, str(error)):
        return NotSupported(message)
    if isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error):
        return WorkerOutOfMemory(f"out of memory: {message}")
    return RunError(message)


def _index(device: str) -> int:
    """`cuda://1` -> 1; 0 if the URI has no number."""
    return DeviceUri.parse(device).ordinal or 0
