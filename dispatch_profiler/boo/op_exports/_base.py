"""What all signatures share: modes, element types, sample arguments, and the names of kernels."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

import numpy as np

from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec, empty_aligned
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.operations import Distribution, Operation, Tensor
from dispatch_profiler.workloads.miopen import Problem, command_text

S = TypeVar("S", bound="OpSignature")


class Mode(str, Enum):
    """What a launch computes: the result, or the gradient of the input, of the weight or of the bias."""

    FORWARD = "forward"
    INPUT_BACKWARD = "input_backward"
    WEIGHT_BACKWARD = "weight_backward"
    BIAS_BACKWARD = "bias_backward"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def parse(cls, mode: str | Mode | None) -> Mode:
        """`fwd`, `bwd`, `wrw`, or a full name, in any case and with `-` or `_`; None is the forward.

        `a_backward` and `b_backward` are the gradients of a product's operands. Raises UsageError.
        """
        if mode is None:
            return cls.FORWARD
        given = mode.value if isinstance(mode, Mode) else str(mode).lower().replace("-", "_")
        name = _MODE_ALIASES.get(given, given)
        try:
            return cls(name)
        except ValueError:
            known = [*(each.value for each in cls), *_MODE_ALIASES]
            raise UsageError(f"unknown mode {mode!r}", hint=did_you_mean(name, known)) from None


_MODE_ALIASES = {
    "fwd": "forward",
    "bwd": "input_backward",
    "wrw": "weight_backward",
    "a_backward": "input_backward",
    "b_backward": "weight_backward",
}
#: Names of types in torch and numpy -> ours.
_TYPES = {
    "float64": "f64",
    "double": "f64",
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "int8": "i8",
}
TORCH_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
#: The types that factors of a matrix product may have.
FACTOR_NAMES = {**TORCH_NAMES, "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "i8": "int8"}


def type_name(dtype: Any, known: Mapping[str, str] = TORCH_NAMES) -> str:
    """Our name of a type that torch, numpy or a text names: `torch.bfloat16`, `numpy.float16`, `f32`.

    Raises UsageError for types that are not in `known`.
    """
    theirs = getattr(dtype, "__name__", None) or str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    name = _TYPES.get(theirs, theirs)
    if name not in known:
        raise UsageError(f"unsupported type {dtype}", hint=f"available: {', '.join(known.values())}")
    return name


def sizes(what: str, values: Any, least: int = 1) -> tuple[int, ...]:
    """`values` as a tuple of ints of at least `least`. Raises UsageError, which names `what`."""
    try:
        numbers = tuple(int(each) for each in values)
        is_whole = all(each == given for each, given in zip(numbers, values, strict=True))
    except (TypeError, ValueError, OverflowError):
        numbers, is_whole = (), False
    if not is_whole or any(each < least for each in numbers):
        raise UsageError(f"{what} must be whole numbers of at least {least}, but got {values!r}")
    return numbers


def switch(what: str, value: Any) -> bool:
    """`value` as a bool: True, False, 1 or 0. Raises UsageError, which names `what`."""
    if not isinstance(value, (bool, int, np.bool_, np.integer)) or value not in (0, 1):
        raise UsageError(f"{what} must be True or False, but got {value!r}")
    return bool(value)


def positive_number(what: str, value: Any) -> float:
    """`value` as a finite number above 0. Raises UsageError, which names `what`."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value < math.inf:
        raise UsageError(f"{what} must be a number above 0, but got {value!r}")
    return float(value)


class OpSignature(abc.ABC):
    """One launch: what it computes, on which shapes. Subclasses are frozen dataclasses with a field `mode`.

    Two equal signatures have the same operation, so they share a kernel.
    """

    #: What the signature describes to `workloads.miopen`.
    problem_type: ClassVar[type[Problem]]
    mode: Mode

    @property
    @abc.abstractmethod
    def problem(self) -> Problem:
        """The problem, in all modes the same."""

    @classmethod
    @abc.abstractmethod
    def of_problem(cls: type[S], problem: Any, mode: Mode) -> S:
        """The signature of a problem that a command describes."""

    @property
    @abc.abstractmethod
    def func_name(self) -> str:
        """A label for people and caches' listings, which tells signatures apart. No identity: that is the operation."""

    @abc.abstractmethod
    def _tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int]], list[tuple[str, tuple[int, ...]]]]:
        """Name, shape and position among the operands of each argument; name and shape of each result."""

    def _set(self, parsed: Mapping[str, Any]) -> None:
        """Set fields of this frozen object to the values that were parsed from the given ones, for `__post_init__`."""
        for name, value in parsed.items():
            object.__setattr__(self, name, value)

    def get_func_name(self) -> str:
        """`func_name`."""
        return self.func_name

    @cached_property
    def operation(self) -> Operation:
        """What is computed. Raises OperationError."""
        return self.problem.operation(self.mode.value)

    @cached_property
    def launch(self) -> LaunchSpec:
        """The tensors of a launch."""
        operation = self.operation
        arguments, results = self._tensors()
        return LaunchSpec(
            operation,
            tuple(_spec(name, shape, operation.operands, at) for name, shape, at in arguments),
            tuple(_spec(name, shape, operation.results, at) for at, (name, shape) in enumerate(results)),
        )

    @property
    def command(self) -> str:
        """The command of MIOpenDriver for this signature. Raises UnsupportedFeature if MIOpen has none."""
        return command_text(self.problem, (self.mode.value,))

    @property
    def is_forward(self) -> bool:
        """Whether the mode is the forward."""
        return self.mode is Mode.FORWARD

    def as_init_kwargs(self) -> dict[str, Any]:
        """Keyword arguments that construct an equal signature."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    # -- sample arguments ---------------------------------------------------------------------

    def get_sample_args(
        self, device: Any = None, seed: int | None = None, splat_value: float | None = None
    ) -> tuple[Any, ...]:
        """Random arguments of a launch: torch tensors on `device` if torch is installed, otherwise numpy arrays.

        In the order of the launch: `(x, w[, b])` forward, `(dLdy, w)` and `(dLdy, x)` backward. Equal seeds give equal
        values, on every device. With `splat_value`, every element has this value. Raises UsageError for a device that
        needs torch, and for a value that is infinite or not a number in the type of an argument.
        """
        operation = self.operation
        if splat_value is None:
            rng = np.random.default_rng(seed)
            drawn = [operation.draw(each, Distribution.REALS, rng) for each in operation.operands]
        else:
            drawn = [_filled(each, splat_value) for each in operation.operands]
        specs = self.launch.arguments
        arrays = [drawn[spec.position].reshape(spec.shape) for spec in specs]
        if find_spec("torch"):
            return tuple(_as_tensor(each, spec, device) for each, spec in zip(arrays, specs, strict=True))
        if str(device or "cpu") != "cpu":
            raise UsageError(f"arguments on {device} need torch", hint="python -m pip install 'torch>=2.6'")
        return tuple(map(_aligned, arrays))

    def get_sample_conv_args(
        self, device: Any = None, seed: int | None = None, splat_value: float | None = None
    ) -> tuple[Any, ...]:
        """`get_sample_args`, by its former name."""
        return self.get_sample_args(device, seed, splat_value)


def _filled(tensor: Tensor, value: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        filled = np.full(tensor.shape, value, tensor.type.dtype)
    if filled.size and math.isfinite(value) and not np.isfinite(filled.flat[0]):
        raise UsageError(
            f"cannot fill arguments with {value:g}, which is too large for {tensor.type.name}",
            hint="give a smaller value, or an operation of a wider type",
        )
    return filled


def _spec(name: str, shape: tuple[int, ...], of: Sequence[Tensor], at: int) -> TensorSpec:
    return TensorSpec(name, shape, of[at].type, of[at].shape, at)


def _as_tensor(array: Any, spec: TensorSpec, device: Any) -> Any:
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[spec.type.bytes]
    values = torch.from_numpy(array.view(f"i{spec.type.bytes}"))
    tensor = torch.empty(array.shape, dtype=getattr(torch, FACTOR_NAMES[spec.type.name]), device=device)
    tensor.view(bits).copy_(values)
    return tensor


def _aligned(array: Any) -> Any:
    aligned = empty_aligned(array.shape, array.dtype)
    aligned[...] = array
    return aligned


def joined(values: Iterable[int]) -> str:
    """`(1, 2)` -> `1x2`."""
    return "x".join(map(str, values))
