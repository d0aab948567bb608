"""PyTorch on a CPU with weights that are packed at load time, as `torch.compile` does with frozen weights.

Filters are stored as oneDNN prefers them for the shape. Weights of products are packed by MKL, or by oneDNN if torch
was built without MKL; `torch.compile` chooses likewise for f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Contraction, ConvolutionGeometry, Operation
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.providers.in_torch._base import Computation, Tensor
from dispatch_profiler.profiler.providers.in_torch._steps import apply_steps, epilogue_steps
from dispatch_profiler.profiler.providers.in_torch.convolution import Padding, convolution_computation
from dispatch_profiler.profiler.providers.protocol import NotSupported
from dispatch_profiler.profiler.providers.torch_library import (
    TorchCall,
    TorchLibrary,
    torch_api,
)
from dispatch_profiler.runtime import DeviceUri

NAME = "torch-prepacked"


class TorchPrepacked(TorchLibrary):
    """See `Library`: f32 products and forward convolutions, on a CPU."""

    def __init__(self, device: str, threads: int) -> None:
        if DeviceUri.parse(device).is_gpu:
            raise UsageError(
                f"{NAME} runs on the CPU, but the device is {device}", hint=f"remove {NAME} from --providers"
            )
        super().__init__(device, threads)
        if not torch_api.backends.mkldnn.is_available():
            raise UsageError(f"{NAME} requires a torch with oneDNN", hint=f"remove {NAME} from --providers")

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
        raise NotSupported(f"{NAME} is for f32, not {types.lhs} with a result in {types.result}")
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
