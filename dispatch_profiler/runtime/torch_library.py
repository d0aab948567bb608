"""PyTorch: oneDNN and MKL on a CPU, cuBLAS and cuDNN on a GPU. The one file here that imports torch.

Full precision everywhere: no TF32, no sums in half precision, since operations are defined so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import Conv2d, ElementType, Operation
from dispatch_profiler.operations.matmul import BatchMatmul, Matmul
from dispatch_profiler.runtime._base import RunError, poison, raw_clock
from dispatch_profiler.runtime.libraries import NotSupported, is_gpu

try:
    import torch
except ImportError as error:
    raise MissingDependency(
        "the provider torch needs PyTorch",
        hint="python -m pip install 'dispatch_profiler[torch]', or torch alone",
    ) from error

Tensor = Any
_torch: Any = torch  # parts of it have no types
_TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "i8": torch.int8,
    "i32": torch.int32,
}
#: Device URI's driver -> attribute of torch.version that is set where torch was built for it.
_GPU_BUILDS = {"cuda": "cuda", "hip": "hip", "rocm": "hip"}


class TorchLibrary:
    """See `Library`."""

    def __init__(self, device: str, threads: int) -> None:
        driver = re.split(r"[:/]", device)[0]
        if is_gpu(device):
            build = _GPU_BUILDS.get(driver)
            if build is None:
                raise UsageError(f"torch has no device like {device}", hint="leave torch out of --providers")
            if getattr(torch.version, build) is None or not torch.cuda.is_available():
                raise UsageError(
                    f"this torch ({torch.__version__}) has no {build}, but the device is {device}",
                    hint="install the build of PyTorch for this GPU, or leave torch out of --providers",
                )
        self._device = torch.device("cuda", _index(device)) if is_gpu(device) else torch.device("cpu")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.benchmark = True  # the fastest algorithm that cuDNN has

    @property
    def version(self) -> str:
        """See `Library.version`: `torch 2.13.0+cpu (oneDNN 3.12.0, MKL 2024.2)`."""
        built = torch.__config__.show()
        if self._device.type == "cuda":
            parts = [
                f"cuBLAS of CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
            ]
            parts += (
                [f"cuDNN {_torch.backends.cudnn.version()}"] if _torch.backends.cudnn.is_available() else []
            )
        else:
            named = (("oneDNN", r"MKL-DNN v([\d.]+)"), ("MKL", r"Math Kernel Library Version ([\d.]+)"))
            parts = [f"{name} {found[1]}" for name, text in named if (found := re.search(text, built))]
        return f"torch {torch.__version__} ({', '.join(parts) or 'no BLAS named'})"

    def bind(self, function: str, operation: Operation, inputs: Sequence[np.ndarray]) -> TorchCall:
        """See `Library.bind`."""
        call = TorchCall(operation, inputs, self._device)
        try:
            call.time(1)
        except NotImplementedError as error:
            raise NotSupported(f"torch: {_first(error)}") from error
        except RuntimeError as error:
            if re.search(r"not implemented|[Uu]nsupported|needs to be", str(error)):
                raise NotSupported(f"torch: {_first(error)}") from error
            raise RunError(f"torch: {_first(error)}") from error
        return call


class TorchCall:
    """See `Call`. A product lands in memory that is there already; a convolution has no such form."""

    def __init__(self, operation: Operation, inputs: Sequence[np.ndarray], device: torch.device) -> None:
        self._operation = operation
        self._device = device
        tensors = [
            self._put(array, tensor.type) for array, tensor in zip(inputs, operation.inputs, strict=True)
        ]
        if isinstance(operation, (Matmul, BatchMatmul)):
            self._result = self._put(
                poison(operation.result.type, operation.result.shape), operation.result.type
            )
            self._compute = _product(operation, tensors, self._result)
        elif isinstance(operation, Conv2d):
            self._result = None
            self._compute = _convolution(operation, tensors)
        else:
            raise NotSupported(f"torch computes no {operation.kind} here")

    def _put(self, array: np.ndarray, type_: ElementType) -> Tensor:
        """On the device; numpy's bf16 and f8 travel as their bits."""
        bits = np.ascontiguousarray(array).view(f"i{type_.bytes}")
        return torch.from_numpy(bits.copy()).view(_TYPES[type_.name]).to(self._device)

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return raw_clock

    def run(self) -> np.ndarray:
        """See `Call.run`."""
        result = self._operation.result
        if self._result is not None:
            self._result.copy_(self._put(poison(result.type, result.shape), result.type))
        try:
            found = self._compute()
        except RuntimeError as error:
            raise RunError(f"torch: {_first(error)}") from error
        bits = found.contiguous().view(getattr(torch, f"int{result.type.bits}")).cpu().numpy()
        return bits.view(result.type.dtype).reshape(result.shape).copy()

    def time(self, calls: int) -> float:
        """See `Call.time`; a GPU is waited for, once before and once after."""
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            self._compute()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _index(device: str) -> int:
    """`cuda://1` -> 1; the first if the URI names none by its number."""
    found = re.fullmatch(r"\w+://(\d+)", device)
    return int(found[1]) if found else 0


def _first(error: Exception) -> str:
    return str(error).splitlines()[0][:300]


def _product(operation: Matmul | BatchMatmul, tensors: list[Tensor], out: Tensor) -> Callable[[], Tensor]:
    """A transposed operand is read as it lies."""
    types = operation.types
    lhs = tensors[0] if operation.lhs_layout == "t" else tensors[0].mT
    rhs = tensors[1] if operation.rhs_layout == "t" else tensors[1].mT
    bias = tensors[2] if operation.epilogue.bias else None
    if types.input.is_integer:
        return _integer_product(operation, lhs, rhs, bias, out)
    if types.input.name == "f8E4M3FN":
        raise NotSupported("torch multiplies f8E4M3FN only with scales, which this operation has not")
    if types.lhs != types.result and types.input.precision < types.accumulator.precision:
        return _widened_product(operation, lhs, rhs, bias, out)
    activation = _activation(operation)
    # A result that is narrower than the sums gets them rounded once, in the end.
    sums = out if types.lhs == types.result else torch.empty(out.shape, dtype=lhs.dtype, device=lhs.device)
    added = None if bias is None else bias.to(lhs.dtype)
    batched = lhs.dim() == 3

    def compute() -> Tensor:
        if added is None:
            torch.matmul(lhs, rhs, out=sums)
        elif batched:
            torch.baddbmm(added, lhs, rhs, out=sums)
        else:
            torch.addmm(added, lhs, rhs, out=sums)
        activation(sums)
        return out if sums is out else out.copy_(sums)

    return compute


def _widened_product(
    operation: Operation, lhs: Tensor, rhs: Tensor, bias: Tensor | None, out: Tensor
) -> Callable[[], Tensor]:
    """Narrow operands with a wider result: cuBLAS has that, a CPU does not."""
    types, activation = operation.types, _activation(operation)
    if lhs.device.type != "cuda" or types.result != "f32":
        raise NotSupported(f"torch has no product of {types.lhs} with a result in {types.result} here")
    multiply = torch.bmm if lhs.dim() == 3 else torch.mm

    def compute() -> Tensor:
        multiply(lhs, rhs, out_dtype=torch.float32, out=out)
        if bias is not None:
            out.add_(bias)
        return activation(out)

    return compute


def _integer_product(
    operation: Operation, lhs: Tensor, rhs: Tensor, bias: Tensor | None, out: Tensor
) -> Callable[[], Tensor]:
    """i8 x i8 -> i32, one matrix after another."""
    activation = _activation(operation)
    parts = list(zip(lhs, rhs, out, strict=True)) if lhs.dim() == 3 else [(lhs, rhs, out)]

    def compute() -> Tensor:
        for left, right, result in parts:
            torch._int_mm(left, right, out=result)
        if bias is not None:
            out.add_(bias)
        return activation(out)

    return compute


def _convolution(operation: Conv2d, tensors: list[Tensor]) -> Callable[[], Tensor]:
    """Images lie as the operation says; filters as torch's users hold them, laid out beforehand."""
    types, activation = operation.types, _activation(operation)
    narrow = types.input.precision < types.accumulator.precision
    if types.input.is_integer or types.input.name == "f8E4M3FN" or (narrow and types.lhs != types.result):
        raise NotSupported(f"torch has no convolution of {types.lhs} with a result in {types.result}")
    images, filters, *bias = tensors
    last = operation.layout == "nhwc"
    layout = torch.channels_last if last else torch.contiguous_format
    if last:
        images, filters = images.permute(0, 3, 1, 2), filters.permute(3, 2, 0, 1)
    filters = filters.contiguous(memory_format=layout)
    added = bias[0].to(filters.dtype) if bias else None
    narrowed = _TYPES[types.result]

    def compute() -> Tensor:
        found = torch.conv2d(
            images, filters, added, operation.stride, operation.padding, operation.dilation, operation.groups
        )
        found = activation(found).to(narrowed).contiguous(memory_format=layout)
        return found.permute(0, 2, 3, 1) if last else found

    return compute


def _activation(operation: Operation) -> Callable[[Tensor], Tensor]:
    """In place."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda x: x,
        "relu": torch.relu_,
        "gelu": torch.ops.aten.gelu_.default,
        "sigmoid": torch.sigmoid_,
        "tanh": torch.tanh_,
    }
    if operation.epilogue.activation not in known:
        raise NotSupported(f"torch computes no {operation.epilogue.activation} here")
    return known[operation.epilogue.activation]
