"""Epilogues as Triton's kernels see them."""

from __future__ import annotations

from dispatch_profiler.operations import ElementType, Epilogue


def kernel_steps(epilogue: Epilogue, accumulator: ElementType) -> str:
    """The constant STEPS of a kernel: `bias:0:0.0:0.0 clamp:1:-1.0:2.0`.

    Each step has the place of its first operand among the operands of all steps, and two parameters, 0 where it
    lacks them; in i32, the parameters are integers. The constant is a string because Triton 3.6 accepts no
    tuple of strings.
    """
    number = int if accumulator.is_integer else float
    texts = []
    for step, place in epilogue.places():
        first, second, *_ = map(number, (*step.parameters, 0, 0))
        texts.append(f"{step.name}:{place.start}:{first}:{second}")
    return " ".join(texts)
