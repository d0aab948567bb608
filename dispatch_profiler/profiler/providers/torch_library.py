"""PyTorch: oneDNN and MKL on a CPU, cuBLAS and cuDNN on a GPU. Of the providers, only this file imports torch.

Uses full precision everywhere: no TF32 and no sums in half precision, as the operations are defined.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, UsageError, WorkerOutOfMemory
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, ElementType, Operation
from dispatch_profiler.operations import Tensor as ResultTensor
from dispatch_profiler.profiler.measurement.kernels import NotSupported, Operands
from dispatch_profiler.profiler.providers.in_torch._base import (
    TORCH_NAMES,
    Computation,
    Tensor,
    apply_steps,
    dtype_of,
    epilogue_steps,
    torch_family,
)
from dispatch_profiler.profiler.providers.in_torch.convolution import Padding, convolution_computation
from dispatch_profiler.profiler.verification.inputs import poison
from dispatch_profiler.runtime import DeviceUri, RunError
from dispatch_profiler.runtime._base import raw_clock, seconds_of
from dispatch_profiler.runtime.caches import last_level_cache_bytes

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
        tensors = [on_device(*each, self._device) for each in zip(arrays, types, strict=True)]
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
            raise translated(error) from error
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
            raise translated(error) from error

    def time(self, calls: int) -> float:
        """See `KernelCall.time`."""
        try:
            return self._turns.time(calls)
        except RuntimeError as error:
            raise translated(error) from error


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
            raise translated(error) from error

    def time(self, calls: int) -> float:
        """See `KernelCall.time`; synchronizes with a GPU before and after."""
        try:
            self._wait()
            return seconds_of(self._compute, itertools.islice(self._turns, calls), wait=self._wait)
        except RuntimeError as error:
            raise translated(error) from error

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def on_device(array: np.ndarray, type_: ElementType, device: torch.device) -> Tensor:
    """A copy on the device; numpy's bf16 and f8 are transferred as bits."""
    bits = np.ascontiguousarray(array).view(f"i{type_.bytes}")
    return torch.from_numpy(bits.copy()).view(TYPES[type_.name]).to(device)


def _each(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results of a computation, which returns a tuple only if it has several."""
    return found if isinstance(found, tuple) else (found,)


def _fill_with_poison(operands: Operands, device: torch.device) -> None:
    results = operands.operation.results
    for memory, result in zip(operands.handles[-len(results) :], results, strict=True):
        memory.copy_(on_device(poison(result.type, result.shape), result.type, device))


def _array(found: Tensor, result: ResultTensor) -> np.ndarray:
    """A copy on the host."""
    bits = found.contiguous().view(getattr(torch, f"int{result.type.bits}")).cpu().numpy()
    return bits.view(result.type.dtype).reshape(result.shape).copy()


def computation(operation: Operation, device: torch.device) -> Computation:
    """See `TorchFamily.computation`. Raises NotSupported."""
    return torch_family(operation).computation(torch_api, operation, device)


def translated(error: RuntimeError) -> Exception:
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


# -- torch graphs ----------------------------------------------------------------------------------

# torch in CUDA graphs: many executions per launch, like the profile vmfb of a dispatch.
#
# In eager mode, torch launches each kernel from Python, which takes two to four times as long as the
# kernels of small problems. A graph is captured after a warm-up on a side stream, in which cuBLAS allocates
# its workspace and cuDNN chooses its algorithm (see PyTorch's notes on CUDA graphs).


#: Executions before the capture.
_WARM_UP = 3


@dataclass(frozen=True)
class CapturedGraph:
    """A CUDA graph, the tensor that holds its result after a replay, and the owner of its memory."""

    graph: Any
    result: Any
    #: A replay uses fixed addresses, so the memory allocated before the capture must stay alive.
    compute: Callable[[], Any]


def capture(cuda: Any, device: Any, compute: Callable[[], Any], count: int) -> CapturedGraph:
    """Capture `count` executions of `compute`, which launches kernels on `device`. `cuda` is `torch.cuda`.

    Raises torch's RuntimeError if some of the work cannot be captured.
    """
    with cuda.device(device):
        stream = cuda.Stream(device)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            for _ in range(_WARM_UP):
                compute()
        cuda.current_stream(device).wait_stream(stream)
        cuda.synchronize(device)
        graph, result = cuda.CUDAGraph(), None
        with cuda.graph(graph, stream=stream):
            for _ in range(count):
                result = compute()
        return CapturedGraph(graph, result, compute)


class GraphCache:
    """Captured graphs, one for each `Operands` object and number of executions."""

    def __init__(self, cuda: Any, device: Any) -> None:
        self._cuda = cuda
        self._device = device
        self._captured: weakref.WeakKeyDictionary[Operands, dict[int, CapturedGraph]]
        self._captured = weakref.WeakKeyDictionary()

    def get(self, operands: Operands, compute: Callable[..., Any], count: int) -> CapturedGraph:
        """The graph of `count` executions of `compute` on the handles of `operands`."""
        known = self._captured.setdefault(operands, {})
        if count not in known:
            handles = operands.handles  # not `operands`: a graph must not keep its own key alive
            known[count] = capture(self._cuda, self._device, lambda: compute(*handles), count)
        return known[count]


class GraphTurns:
    """Replays graphs in turn and waits for each, as a call of IREE does."""

    def __init__(self, cuda: Any, device: Any, graphs: Sequence[CapturedGraph]) -> None:
        self._cuda = cuda
        self._device = device
        self.first = graphs[0]
        self._turns = itertools.cycle(graphs)

    def replay_first(self) -> None:
        """Replay the first graph and wait for it."""
        self._replay(self.first)

    def time(self, calls: int) -> float:
        """Total seconds of `calls` replays."""
        self._cuda.synchronize(self._device)
        return seconds_of(self._replay, zip(itertools.islice(self._turns, calls)))

    def _replay(self, captured: CapturedGraph) -> None:
        captured.graph.replay()
        self._cuda.synchronize(self._device)


# -- torch prepacked -------------------------------------------------------------------------------

# PyTorch on a CPU with weights that are packed at load time, as `torch.compile` does with frozen weights.
#
# Filters are stored as oneDNN prefers them for the shape. Weights of products are packed by MKL, or by oneDNN if torch
# was built without MKL; `torch.compile` chooses likewise for f32.


PREPACKED = "torch-prepacked"


class TorchPrepacked(TorchLibrary):
    """See `Library`: f32 products and forward convolutions, on a CPU."""

    def __init__(self, device: str, threads: int) -> None:
        if DeviceUri.parse(device).is_gpu:
            raise UsageError(
                f"{PREPACKED} runs on the CPU, but the device is {device}",
                hint=f"remove {PREPACKED} from --providers",
            )
        super().__init__(device, threads)
        if not torch_api.backends.mkldnn.is_available():
            raise UsageError(
                f"{PREPACKED} requires a torch with oneDNN", hint=f"remove {PREPACKED} from --providers"
            )

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`: `put` packs every weight."""
        return True

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Library.put`: the operands as for torch, with the weight packed."""
        contraction = _supported(operation)
        found = super().put(operation, inputs)
        images, weight, *rest = found.handles
        if contraction.convolution is not None:
            packed: Any = _packed_filter(contraction.convolution, images, weight)
        else:
            packed = _packed_matrix(weight, images.shape[0])
        return Operands(operation, (images, packed, *rest))

    def bind(self, function: str, *operands: Operands) -> TorchCall:
        """See `Library.bind`."""
        compute = _computation(_supported(operands[0].operation), self.device)
        return TorchCall(operands, self.device, compute)


def _supported(operation: Operation) -> Contraction:
    """The operation as a contraction. Raises NotSupported for operations that torch does not pack."""
    contraction, product, convolution = operation.contraction, operation.product, operation.convolution
    if contraction is None:
        raise NotSupported(f"{operation.kind} has no weight that torch packs")
    types = contraction.types
    if {types.lhs, types.rhs, types.result, types.accumulator.name} != {"f32"}:
        raise NotSupported(f"{PREPACKED} is for f32, not {types.input.name} with a result in {types.result}")
    if product is not None and (product.is_batched or product.lhs_layout != "t"):
        raise NotSupported(f"torch packs no weight of {operation.name}")
    if convolution is not None and (convolution.mode != "forward" or convolution.spatial_rank == 1):
        raise NotSupported(f"torch packs no weight of {operation.kind} {convolution.mode}")
    return contraction


def _computation(operation: Contraction, device: Any) -> Computation:
    if operation.convolution is None:
        return _product(operation)
    return convolution_computation(torch_api, operation, device, _convolution)


# -- products ------------------------------------------------------------------------------------------


def _packed_matrix(weight: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """A weight k x n -> packed for a left operand with `rows` rows, and as torch stores it: n x k."""
    stored = weight.mT.contiguous()
    if torch_api._C.has_mkl:
        return torch_api.ops.mkl._mkl_reorder_linear_weight(stored, rows), stored
    return torch_api.ops.mkldnn._reorder_linear_weight(stored, rows), stored


def _product(operation: Contraction) -> Computation:
    fuses = operation.epilogue.starts_with_bias
    steps = epilogue_steps(torch_api, operation, without_first=fuses)
    with_mkl = torch_api._C.has_mkl

    def compute(lhs: Tensor, weight: tuple[Tensor, Tensor], *rest: Tensor) -> Tensor:
        (packed, stored), bias = weight, rest[0] if fuses else None
        if with_mkl:
            found = torch_api.ops.mkl._mkl_linear(lhs, packed, stored, bias, lhs.shape[0])
        else:
            found = torch_api.ops.mkldnn._linear_pointwise(lhs, packed, bias, "none", [], "")
        return apply_steps(steps, found, rest)

    return compute


# -- convolutions --------------------------------------------------------------------------------------


def _packed_filter(convolution: ConvolutionGeometry, images: Tensor, filters: Tensor) -> Tensor:
    """Filters as oneDNN prefers them for images of this size."""
    padding = Padding(torch_api, convolution)
    name = f"mkldnn_reorder_conv{convolution.spatial_rank}d_weight"
    size = (images.shape[0], images.shape[1], *padding.size)
    window = (padding.on_both, convolution.stride, convolution.dilation, convolution.groups)
    return getattr(torch_api.ops.aten, name)(filters.to_mkldnn(), *window, size)


def _convolution(api: Any, convolution: ConvolutionGeometry, fuses: bool) -> Callable[..., Tensor]:
    padding = Padding(api, convolution)
    window = (padding.on_both, convolution.stride, convolution.dilation, convolution.groups)
    convolve = api.ops.mkldnn._convolution_pointwise

    def compute(images: Tensor, filters: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        bias = rest[0] if fuses else None
        return convolve(padding.copied(images), filters, bias, *window, "none", [], "")

    return compute
