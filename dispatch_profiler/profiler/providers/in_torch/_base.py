"""What torch needs to know of a family of operations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.families import find_family
from dispatch_profiler.operations import CONV_ROLES, Contraction, ConvolutionGeometry, Operation, Step
from dispatch_profiler.profiler.measurement.kernels import NotSupported

Tensor = Any
#: (operands, results) -> the result or a tuple of them, written to `results` where torch supports it.
Computation = Callable[..., Tensor]
#: Our names of element types -> torch's.
TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "i8": "int8",
    "i32": "int32",
}


def dtype_of(api: Any, type_: str) -> Any:
    """torch's dtype for our name of an element type."""
    return getattr(api, TORCH_NAMES[type_])


@dataclass(frozen=True)
class TorchFunction:
    """An operation as torch computes it eagerly.

    `enter` takes the operation's operands, in its shapes, and returns views in torch's order of axes, as a user of
    torch has them. `function` takes these views. `leave` converts the results of `function` to the operation's results.
    """

    enter: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
    function: Callable[..., Any]
    leave: Callable[[Any], tuple[Tensor, ...]]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for these operands."""
        return self.leave(self.function(*self.enter(tensors)))


class TorchFamily(abc.ABC):
    """How torch computes a family of operations. Raises NotSupported if torch computes something else."""

    @abc.abstractmethod
    def method(self, kind: str) -> str:
        """The function of torch that computes a kind of the family, as tables name it: `conv2d`."""

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Operands and results, which `tensors` has in the operation's shapes, as `computation` takes them."""
        return tuple(tensors)

    @abc.abstractmethod
    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """A function of `handles` that computes the operation as defined, for timing."""

    @abc.abstractmethod
    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """The operation as a user of torch computes it."""

    def converts_weights_ahead(self, operation: Operation, device: Any) -> bool:
        """See `Library.converts_weights_ahead`."""
        return False


def torch_family(operation: Operation) -> TorchFamily:
    """How torch computes the family of `operation`. Raises NotSupported."""
    found = find_family(__package__, operation.family, TorchFamily)  # type: ignore[type-abstract]
    if found is None:
        raise NotSupported(f"torch does not support {operation.kind}")
    return found


def single(result: Tensor) -> tuple[Tensor, ...]:
    """`TorchFunction.leave` of an operation with one result, in its shape."""
    return (result,)


# -- steps -----------------------------------------------------------------------------------------

# Epilogues in torch, computed in place.


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
        "residual": lambda x, residual: x.add_(residual, alpha=numbers[0]),
        "scale": lambda x: x.mul_(numbers[0]),
        **dict.fromkeys(("channel_scale", "row_scale"), lambda x, scale: x.mul_(scale)),
        "scale_shift": lambda x, scale, shift: torch.addcmul(shift, x, scale, out=x),
        "relu": torch.relu_,
        "relu6": lambda x: functional.hardtanh_(x, 0, 6),
        "clamp": lambda x: functional.hardtanh_(x, *numbers),
        "leaky_relu": lambda x: functional.leaky_relu_(x, *numbers),
        "hardswish": lambda x: functional.hardswish(x, inplace=True),
        "hardsigmoid": lambda x: functional.hardsigmoid(x, inplace=True),
        "gelu": gelu,
        "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
        "silu": lambda x: functional.silu(x, inplace=True),
        "sigmoid": torch.sigmoid_,
        "tanh": torch.tanh_,
    }
    if step.name not in known:
        raise NotSupported(f"torch does not support the step {step}")
    return known[step.name]
