"""Compiled kernels and launches of them, as signatures and the cache would describe and provide them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dispatch_profiler.boo.interface import LaunchKernel, LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching import empty_aligned
from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Distribution, Matmul, Operation, Tensor
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import parse_target

SMALL = Matmul(4, 8, 16)


@functools.cache
def vmfb_of(operation: Operation, source: str = "") -> tuple[str, bytes]:
    """(function, vmfb) of the compiler's default; `source` replaces the operation's MLIR."""
    dispatch = Dispatch(operation, Default())
    text = source or render_module(operation, [dispatch])
    flags = parse_target("llvm-cpu").compile_flags
    return dispatch.name, IreeCompiler().build(BuildRequest(text, (dispatch,), flags, 1)).verify


class Kernels:
    """See `KernelProvider`. Counts how often it was asked."""

    def __init__(self, operation: Operation, source: str = "", make: Callable[[], bytes] | None = None):
        self.operation = operation
        self.source = source
        self.make = make
        self.asked: list[DeviceUri] = []

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        self.asked.append(device)
        function, vmfb = vmfb_of(self.operation, self.source)
        return LaunchKernel(self.make() if self.make else vmfb, function, f"key of {self.operation.name}")


def spec_of(operation: Operation) -> LaunchSpec:
    """Arguments and results are those of the operation, in its order."""

    def specs(tensors: tuple[Tensor, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.name, t.shape, t.type, t.shape, i) for i, t in enumerate(tensors))

    return LaunchSpec(operation, specs(operation.operands), specs(operation.results))


def with_shape(spec: TensorSpec, *shape: int) -> TensorSpec:
    """The caller sees another shape than the kernel."""
    return replace(spec, shape=shape)


def drawn(operation: Operation, seed: int = 0) -> list[np.ndarray]:
    """Operands in aligned memory. Where possible, results do not depend on the order of sums."""
    rng = np.random.default_rng(seed)
    distribution = next(iter(operation.distributions))
    return [aligned(operation.draw(each, distribution, rng)) for each in operation.operands]


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that launches can read where it is."""
    copy = empty_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def expected_of(operation: Operation, operands: list[np.ndarray]) -> list[np.ndarray]:
    """The exact results, in the types of the operation's results."""
    assert Distribution.INTEGERS in operation.distributions
    references = operation.reference(operands)
    return [r.expected.astype(each.type.dtype) for r, each in zip(references, operation.results, strict=True)]
