"""Epilogues as Triton's kernels see them."""

from __future__ import annotations

from dispatch_profiler.configurations.external_kernels import KernelStep
from dispatch_profiler.operations import ElementType, Epilogue


def kernel_steps(epilogue: Epilogue, accumulator: ElementType) -> tuple[KernelStep, ...]:
    """The constant STEPS of a kernel, whose steps compute in `accumulator`; parameters that a step lacks are 0."""
    number = int if accumulator.is_integer else float
    found = []
    for step, place in epilogue.places():
        first, second, *_ = map(number, (*step.parameters, 0, 0))
        found.append((step.name, place.start, first, second))
    return tuple(found)
