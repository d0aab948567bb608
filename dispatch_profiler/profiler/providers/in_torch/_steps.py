"""Epilogues in torch, computed in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatch_profiler.operations import CONV_ROLES, Contraction, ConvolutionGeometry, Operation, Step
from dispatch_profiler.profiler.providers.in_torch._base import dtype_of
from dispatch_profiler.profiler.providers.protocol import NotSupported

#: Functions of (sums, operands...), each with the place of its operands among the epilogue's operands.
Steps = list[tuple[Callable[..., Any], slice]]


def with_at_most_a_bias(operation: Operation) -> Contraction:
    """The operation as a contraction that one function of torch computes. Raises NotSupported for other epilogues."""
    contraction = operation.as_contraction()
    if contraction.epilogue.bias_and_activation not in ((False, "none"), (True, "none")):
        raise NotSupported(f"torch has no single function for {operation.name}")
    return contraction


def epilogue_operands(api: Any, operation: Contraction, operands: Sequence[Any], *, fuses: bool) -> list[Any]:
    """Operands in the type of the sums that broadcast against them in torch's order of axes.

    The first keeps its shape if `fuses`: it is a bias that torch adds itself.
    """
    of = operation.types
    held = dtype_of(api, of.lhs if of.input.precision > of.output.precision else of.result)
    return [
        _epilogue_operand(operation, each.to(held), is_fused=fuses and index == 0)
        for index, each in enumerate(operands)
    ]


def _epilogue_operand(operation: Contraction, operand: Any, *, is_fused: bool) -> Any:
    convolution = operation.convolution
    if convolution is None or is_fused:
        return operand
    if operand.ndim == 1:
        return operand.view(-1, *[1] * convolution.spatial_rank)
    return in_order(convolution, CONV_ROLES[convolution.mode][2], operand)


def in_order(convolution: ConvolutionGeometry, role: Any, tensor: Any) -> Any:
    """A view in torch's order of axes: images and channels, or filters and channels, then the spatial axes."""
    stored = convolution.layout_of(role)
    return tensor.permute([stored.index(letter) for letter in torch_order(convolution, role)])


def torch_order(convolution: ConvolutionGeometry, role: Any) -> str:
    """Letters of the axes in torch's order: `nchw`, or `fchw` for a filter."""
    return ("fc" if role == "filter" else "nc") + convolution.spatial_letters


def apply_steps(steps: Steps, sums: Any, operands: Sequence[Any]) -> Any:
    """Compute the steps on `sums`, in place."""
    for step, theirs in steps:
        step(sums, *operands[theirs])
    return sums


def epilogue_steps(torch: Any, operation: Contraction, *, without_first: bool = False) -> Steps:
    """The steps of the epilogue, without the first if the sums include it. Raises NotSupported."""
    is_integer = operation.types.output.is_integer
    found = [(_step(torch, step, is_integer), place) for step, place in operation.epilogue.places()]
    return found[1:] if without_first else found


def _step(torch: Any, step: Step, is_integer: bool) -> Callable[..., Any]:
    functional, gelu = torch.nn.functional, torch.ops.aten.gelu_.default
    numbers = [int(value) if is_integer else value for value in step.parameters]
    known: dict[str, Callable[..., Any]] = {
        "bias": lambda x, bias: x.add_(bias),
        "residual": lambda x, residual: x.add_(residual),
        "scale_shift": lambda x, scale, shift: torch.addcmul(shift, x, scale, out=x),
        "relu": torch.relu_,
        "relu6": lambda x: functional.hardtanh_(x, 0, 6),
        "clamp": lambda x: functional.hardtanh_(x, *numbers),
        "leaky_relu": lambda x: functional.leaky_relu_(x, *numbers),
        "gelu": gelu,
        "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
        "silu": lambda x: functional.silu(x, inplace=True),
        "sigmoid": torch.sigmoid_,
        "tanh": torch.tanh_,
    }
    if step.name not in known:
        raise NotSupported(f"torch does not support the step {step}")
    return known[step.name]
