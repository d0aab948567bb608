"""Kernels that compile, but compute something else.

IREE 3.13 has no right kernel for some convolutions in 16-bit types on NVIDIA's tensor cores. They were found by
comparing 90 convolutions with float64 references on an H200 (`tests/boo/test_cuda_launches.py`, `numerics`); the rules
below cover them, and similar ones.
"""

from __future__ import annotations

import math

from dispatch_profiler.configurations import Configuration, Default
from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.targets import Target

_BITS = 16


def known_fault(operation: Operation, configuration: Configuration, target: Target) -> str:
    """What is wrong with the kernel of a configuration; empty if nothing is known.

    Only the compiler's default is judged: what a library has was verified when it was tuned.
    """
    geometry = operation.convolution
    is_on_tensor_cores = target.limits.backend == "cuda" and operation.element_type.bits == _BITS
    if geometry is None or not is_on_tensor_cores or not isinstance(configuration, Default):
        return ""
    kind = _faulty_kind(geometry)
    return f"IREE 3.13 compiles {kind} in 16-bit types wrongly for NVIDIA's tensor cores" if kind else ""


def _faulty_kind(geometry: ConvolutionGeometry) -> str:
    is_pointwise = math.prod(geometry.filter_size) == 1
    if geometry.mode == "weight_backward" and is_pointwise and math.prod(geometry.stride) > 1:
        return "the gradient of a pointwise filter with a stride"
    if geometry.mode == "input_backward":
        if not is_pointwise and geometry.filter_layout.endswith("cf"):
            return "the gradient of the input of filters that end with their outputs"
        if is_pointwise and geometry.groups > 1 and not geometry.is_channels_last:
            return "the gradient of the input of grouped pointwise filters in NCHW"
    return ""
