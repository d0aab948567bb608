"""Epilogues: steps applied to each element of a contraction's result before it is stored."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import OperationError, did_you_mean
from dispatch_profiler.operations.epilogue_steps import STEP_KINDS, OperandSpan, Roundoffs, StepKind

_HINT = "write none, or steps joined by +, such as bias+relu or scale_shift+residual+clamp(-1,1)"
_STEP = re.compile(r"([a-z]\w*)(?:\(([^()]*)\))?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)
_MAX_STEPS = 16
#: Characters of a text that a message repeats.
_MAX_SHOWN = 100
#: Magnitudes of an int32.
_INT32_LIMIT = 2**31 - 1
#: Factors that operands are multiplied by, where results must be exact.
LARGEST_FACTOR = 2


@dataclass(frozen=True)
class EpilogueOperand:
    """An operand of a step, which has a value for each element of what it `spans`.

    `is_factor`: the element is multiplied by it.
    """

    name: str
    spans: OperandSpan
    is_factor: bool


@dataclass(frozen=True)
class Step:
    """One step of an epilogue: `Step("bias")`, `Step("clamp", (-1.0, 1.0))`.

    Parameters that are left out have the kind's default values. Raises OperationError.
    """

    name: str
    parameters: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in STEP_KINDS:
            raise OperationError(
                f"unknown step {self.name[:_MAX_SHOWN]!r} of an epilogue",
                hint=did_you_mean(self.name[:_MAX_SHOWN], ["none", *STEP_KINDS]),
            )
        # -0.0 and 0 equal 0.0, but would give another name.
        values = tuple(float(value) + 0.0 for value in self.parameters) or self.kind.defaults
        object.__setattr__(self, "parameters", values)
        self._check_parameters()

    def _check_parameters(self) -> None:
        names, shown = self.kind.parameters, f"{self.name}({_listed(self.parameters)})"
        if len(self.parameters) != len(names):
            count = counted(len(names), "number") if names else "no numbers"
            listed = f" ({', '.join(names)})" if names else ""
            got = shown if self.parameters else self.name
            raise OperationError(
                f"{self.name} takes {count}{listed}, but got {got}", hint=_example(self.kind)
            )
        if not all(map(math.isfinite, self.parameters)):
            raise OperationError(
                f"{self.name} takes finite numbers, but got {shown}", hint=_example(self.kind)
            )
        if self.name == "clamp" and self.parameters[0] > self.parameters[1]:
            raise OperationError(f"clamp needs lo <= hi, but got {shown}", hint=_example(self.kind))
        if self.name == "leaky_relu" and self.parameters[0] <= 0:
            raise OperationError(
                f"leaky_relu needs a slope above 0, but got {shown}",
                hint="write leaky_relu(0.2), or relu for a slope of 0",
            )

        if self.name in ("residual", "scale") and self.parameters == (0.0,):
            raise OperationError(
                f"{self.name} needs a factor other than 0, but got {shown}", hint=_example(self.kind)
            )

    @staticmethod
    def parse(text: str) -> Step:
        """Parse a name, or a name and its numbers: `clamp(-1,1)`. Raises OperationError."""
        match = _STEP.fullmatch(text)
        if match is None:
            raise OperationError(f"malformed step {text[:_MAX_SHOWN]!r} of an epilogue", hint=_HINT)
        name, listed = match.groups()
        kind = STEP_KINDS.get(name)
        if kind is None or listed is None:
            return Step(name)
        if not kind.parameters:
            raise OperationError(f"{name} takes no numbers, but got {text[:_MAX_SHOWN]}", hint=_example(kind))
        numbers = [part.strip() for part in listed.split(",")]
        for number in numbers:
            if not _NUMBER.fullmatch(number):
                raise OperationError(
                    f"{name} takes numbers, but got {number[:_MAX_SHOWN]!r}", hint=_example(kind)
                )
        return Step(name, tuple(map(float, numbers)))

    @property
    def kind(self) -> StepKind:
        return STEP_KINDS[self.name]

    @property
    def has_operands(self) -> bool:
        return bool(self.kind.operands)

    @property
    def is_exact(self) -> bool:
        """Whether the step maps integers to integers without rounding, in every type that holds them."""
        return self.kind.largest is not None and all(value.is_integer() for value in self.parameters)

    @property
    def is_on_integers(self) -> bool:
        """Whether the step is defined on i32."""
        return self.is_exact and all(abs(value) <= _INT32_LIMIT for value in self.parameters)

    def apply(self, x: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
        """The step on float64 or int64; `operands` broadcast against `x`."""
        return self.kind.function(x, *operands, *self.parameters)

    def error(
        self,
        x: np.ndarray,
        y: np.ndarray,
        error: np.ndarray,
        roundoffs: Roundoffs,
        operands: Sequence[np.ndarray],
    ) -> np.ndarray:
        """A bound on the absolute error of `y`, which the step computes from `x` with an error of `error`."""
        return self.kind.error(x, y, error, roundoffs, *operands, *self.parameters)

    def largest(self, x: float, operands: Sequence[float]) -> float:
        """The largest magnitude that the step computes, from the largest magnitudes of its argument and operands.

        Infinity if the step is not exact on integers.
        """
        if self.kind.largest is None or not self.is_exact:
            return math.inf
        return self.kind.largest(x, *operands, *map(abs, self.parameters))

    def room(self, room: float, largest: int) -> float:
        """The largest magnitude of an argument for which the step stays below `room`.

        Terms have magnitudes up to `largest`, factors up to LARGEST_FACTOR.
        """
        factor = max(1.0, *map(abs, self.parameters)) if self.name in ("residual", "scale") else 1.0
        if not self.has_operands:
            return room / factor
        if self.name in ("channel_scale", "row_scale"):
            return room / LARGEST_FACTOR
        return (room - largest * factor) / (LARGEST_FACTOR if self.name == "scale_shift" else 1)

    @property
    def symbol(self) -> str:
        """The step in an MLIR symbol: `clampm1to1`, `leaky_relu0p2`.

        gelu_tanh is `gelutanh`, because gelu followed by tanh is `gelu_tanh`.
        """
        name = "gelutanh" if self.name == "gelu_tanh" else self.name
        if self.parameters == self.kind.defaults:
            return name
        numbers = "to".join(map(_number, self.parameters))
        return name + numbers.replace("-", "m").replace(".", "p").replace("+", "")

    def __str__(self) -> str:
        if self.parameters == self.kind.defaults:
            return self.name
        return f"{self.name}({_listed(self.parameters)})"


@dataclass(frozen=True)
class Epilogue:
    """A sequence of steps; without any, the sums are stored as they are.

    `Epilogue.parse("bias+relu")` -> Epilogue((Step("bias"), Step("relu")))
    """

    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) > _MAX_STEPS:
            raise OperationError(
                f"an epilogue has at most {_MAX_STEPS} steps, but got {len(self.steps)}",
                hint="leave out steps",
            )

    @staticmethod
    def parse(text: str) -> Epilogue:
        """Parse `none`, or steps joined by `+`: `scale_shift+residual+clamp(-1,1)`. Raises OperationError."""
        parts = [part.strip() for part in _split(text.lower(), "+")]
        if "" in parts:
            raise OperationError(f"malformed epilogue {text[:_MAX_SHOWN]!r}", hint=_HINT)
        return Epilogue(tuple(Step.parse(part) for part in parts if part != "none"))

    @staticmethod
    def parse_list(text: str) -> tuple[Epilogue, ...]:
        """Parse a comma list; commas in parentheses belong to a step. Equal epilogues are given once."""
        return tuple(dict.fromkeys(Epilogue.parse(part.strip()) for part in _split(text, ",")))

    @property
    def is_empty(self) -> bool:
        return not self.steps

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """Operands of all steps in order. A name that repeats is numbered: `residual`, `residual2`."""
        seen: Counter[str] = Counter()
        operands = []
        for step in self.steps:
            for name in step.kind.operands:
                seen[name] += 1
                number = str(seen[name]) if seen[name] > 1 else ""
                operands.append(EpilogueOperand(name + number, step.kind.spans, name == "scale"))
        return tuple(operands)

    @property
    def factors(self) -> frozenset[str]:
        """Names of the operands that elements are multiplied by."""
        return frozenset(operand.name for operand in self.operands if operand.is_factor)

    @property
    def starts_with_bias(self) -> bool:
        return bool(self.steps) and self.steps[0].name == "bias"

    @property
    def bias_and_activation(self) -> tuple[bool, str] | None:
        """(has a bias, name of the activation or "none"), for at most a bias and then a step without operands.

        None for any other sequence.
        """
        rest = self.steps[1:] if self.starts_with_bias else self.steps
        if len(rest) > 1 or any(step.has_operands for step in rest):
            return None
        return self.starts_with_bias, str(rest[0]) if rest else "none"

    @property
    def is_exact(self) -> bool:
        """Whether every step is exact on integers."""
        return all(step.is_exact for step in self.steps)

    @property
    def selects(self) -> bool:
        """Whether rounding before the steps, between them or after them gives the same result."""
        return all(step.kind.selects for step in self.steps)

    @property
    def flops(self) -> int:
        """Operations per element."""
        return sum(step.kind.flops for step in self.steps)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Requirements of the steps besides numpy, in pip's syntax."""
        return tuple(dict.fromkeys(each for step in self.steps for each in step.kind.requirements))

    def room_for_sums(self, room: float, largest: int) -> float:
        """The largest magnitude of a sum for which every step stays below `room`; room for a bias is always left.

        Terms have magnitudes up to `largest`, factors up to LARGEST_FACTOR.
        """
        for step in reversed(self.steps[1:] if self.starts_with_bias else self.steps):
            room = step.room(room, largest)
        return max(room - largest, 1.0)

    def places(self) -> Iterator[tuple[Step, slice]]:
        """Each step with the place of its operands among the operands of all steps."""
        begin = 0
        for step in self.steps:
            end = begin + len(step.kind.operands)
            yield step, slice(begin, end)
            begin = end

    def with_operands(self, operands: Sequence[np.ndarray]) -> Iterator[tuple[Step, Sequence[np.ndarray]]]:
        """Each step with its part of `operands`, which has the operands of all steps in order."""
        return ((step, operands[place]) for step, place in self.places())

    @property
    def suffix(self) -> str:
        """The epilogue in an MLIR symbol: `bias_relu`, `scale_shift_residual_clampm1to1`."""
        return "_".join(step.symbol for step in self.steps)

    def __str__(self) -> str:
        return "+".join(map(str, self.steps)) or "none"


def _split(text: str, separator: str) -> list[str]:
    """The parts of `text` between separators that are not in parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _number(value: float) -> str:
    """`1` for 1.0, `0.2`, `1e-05`."""
    return repr(value).removesuffix(".0")


def _listed(values: Sequence[float]) -> str:
    return ",".join(map(_number, values))


def _example(kind: StepKind) -> str:
    """A hint with a valid spelling of the kind."""
    examples = {
        "clamp": "(-1,1)",
        "leaky_relu": " or leaky_relu(0.2)",
        "residual": " or residual(0.5)",
        "scale": "(0.5)",
    }
    return f"write {kind.name}{examples.get(kind.name, '')}"
