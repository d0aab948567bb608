"""Programs: operators of torch between regions as one operation, which IREE compiles from their graph.

`relu(mean(x, [2, 3]))` of an image in channels_last memory:

    Program("mean_relu", (Value((1, 64, 7, 7), "f32", "channels"),), '[["mean.dim",[{"value":0},[2,3]],{}],...]', ...)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.values import (
    POSITIONS,
    RESULTS,
    TYPES,
    CacheUpdate,
    Call,
    Value,
)
from dispatch_profiler.errors import OperationError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import (
    AttentionGeometry,
    ContractFunction,
    Distribution,
    ElementType,
    ErrorBound,
    Loop,
    Operation,
    Reference,
    ShapeOption,
    SweepOptions,
    Tensor,
    element_type,
)

_MAX_CALLS, _MAX_VALUES, _MAX_AXES = 1_000, 64, 5
#: Allowed error of a program, in units of f32's epsilon times the largest magnitude of a result.
_ROUNDOFFS = 64
#: Allowed error of a program, in units of the error from rounding each call's result to f32.
_ROUNDINGS = 16
#: Mean of operands that are almost equal: far from zero, but the exponential function does not overflow.
_OFFSET = 8.0


@dataclass(frozen=True)
class OperatorProgram(Operation):
    """Calls of operators of torch, from `inputs` to `outputs`.

    `calls` is canonical JSON: for each call, the operator's name in `operators.OPERATORS`, its arguments, and its named
    arguments. `{"value": n}` stands for a value; values are numbered, first the inputs, then the result of each call.
    `returned` has the numbers of the outputs. Raises OperationError for malformed calls.
    """

    kind: ClassVar[str] = "program"
    label: ClassVar[str] = "OperationKind.Program"
    parallel_axes: ClassVar[tuple[str, ...]] = ()
    reduction_axes: ClassVar[tuple[str, ...]] = ()
    distributions: ClassVar[tuple[Distribution, ...]] = (Distribution.REALS, Distribution.OFFSET)
    shape_options: ClassVar[tuple[ShapeOption, ...]] = ()
    type_options: ClassVar[tuple[str, ...]] = ()

    title: str
    inputs: tuple[Value, ...]
    calls: str
    returned: tuple[int, ...]
    outputs: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.title.isidentifier() or len(self.title) > 80:
            raise OperationError(f"program: the title {self.title[:80]!r} is not an identifier")
        if not 0 < len(self.outputs) == len(self.returned) <= _MAX_VALUES or len(self.inputs) > _MAX_VALUES:
            raise OperationError(
                f"program: expected at most {_MAX_VALUES} inputs, and 1 to {_MAX_VALUES} outputs"
            )
        for each in self.inputs:
            _check_value(each, (*TYPES, POSITIONS))
        for each in self.outputs:
            _check_value(each, RESULTS)
        calls = self.parsed_calls
        count = len(self.inputs) + len(calls)
        for at, (_, arguments, named) in enumerate(calls, start=len(self.inputs)):
            _check_numbers([arguments, named], at)
        if any(type(each) is not int or not 0 <= each < count for each in self.returned):
            raise OperationError(f"program: it returns {self.returned} of {count} values")
        updated = () if self.update is None else (self.update.positions,)
        if any(each.type == POSITIONS and at not in updated for at, each in enumerate(self.inputs)):
            raise OperationError(f"program: {POSITIONS} is the type of positions only")

    @property
    def parsed_calls(self) -> list[Call]:
        """`calls` as data: operator, arguments, named arguments."""
        from dispatch_profiler.boo.fusion.programs.operators import OPERATORS

        try:
            listed = json.loads(self.calls)
            calls = [(name, list(arguments), dict(named)) for name, arguments, named in listed]
        except (ValueError, TypeError, RecursionError) as error:
            raise OperationError(f"program: malformed calls: {error}"[:200]) from error
        unknown = [
            str(name)[:40] for name, _, _ in calls if not isinstance(name, str) or name not in OPERATORS
        ]
        if unknown or not 0 < len(calls) <= _MAX_CALLS:
            raise OperationError(f"program: {unknown or len(calls)} cannot be called")
        return calls

    @property
    def name(self) -> str:
        return f"program_{self.title}_{sha256(json.dumps(self.to_dict()).encode())[:12]}"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return tuple(each.tensor(f"input{at}") for at, each in enumerate(self.inputs))

    @property
    def results(self) -> tuple[Tensor, ...]:
        return tuple(each.tensor(f"output{at}") for at, each in enumerate(self.outputs))

    @property
    def loops(self) -> tuple[Loop, ...]:
        return (Loop("element", self.results[0].elements, "parallel"),)

    @property
    def element_type(self) -> ElementType:
        return self.results[0].type

    @property
    def accumulator(self) -> ElementType:
        return element_type("f32")

    @property
    def flops(self) -> int:
        """One for each element of the operands and results."""
        return sum(each.elements for each in (*self.operands, *self.results))

    def arguments(self) -> dict[str, str]:
        """Empty: programs have no command-line arguments."""
        return {}

    def draw(self, operand: Tensor, distribution: Distribution, rng: np.random.Generator) -> np.ndarray:
        """Normally distributed numbers, or with `Distribution.OFFSET` numbers that are almost equal; positions that differ."""
        if self.update is not None and operand.type.name == POSITIONS:
            return rng.permutation(self.update.extent)[: operand.elements].astype(operand.type.dtype)
        values = rng.standard_normal(operand.shape)
        if distribution is Distribution.OFFSET:
            values = _OFFSET + values / 16.0
        return values.astype(operand.type.dtype)

    def reference(
        self,
        operands: Sequence[np.ndarray],
        *,
        stepwise: bool = False,
        contract: ContractFunction | None = None,
        error_bound: ErrorBound | None = None,
    ) -> tuple[Reference, ...]:
        """torch's results in float64, with error bounds.

        The bound is 64 epsilons of f32 of the largest magnitude in a result, plus 16 times the largest error from
        rounding the result of each call to f32, which is large if results are small differences of large numbers; plus
        the error from rounding a result to a narrower type. It is infinite where one of the two computations is not
        finite, and where a result overflows its type. Attention has a bound of its own, which follows from its scores.
        """
        from dispatch_profiler.boo.fusion.programs.attention import attention_tolerance
        from dispatch_profiler.boo.fusion.programs.operators import evaluate_stored

        if self.attention is not None:
            (expected,) = evaluate_stored(self, operands)
            with np.errstate(invalid="ignore"):
                allowed = attention_tolerance(self, operands)
            is_known = np.isfinite(expected) & np.isfinite(allowed)
            return (Reference(expected, np.where(is_known, allowed, math.inf)),)
        references = []
        pairs = (evaluate_stored(self, operands), evaluate_stored(self, operands, rounds=True))
        with np.errstate(invalid="ignore"):
            for expected, rounded, result in zip(*pairs, self.results, strict=True):
                finite = np.isfinite(expected) & np.isfinite(rounded)
                largest = max(1.0, float(np.abs(expected[finite]).max(initial=0.0)))
                moved = float(np.abs(expected - rounded)[finite].max(initial=0.0))
                bound = _ROUNDOFFS * float(np.finfo(np.float32).eps) * largest + _ROUNDINGS * moved
                tolerance = np.where(finite, bound + _stored_error(expected, result.type), math.inf)
                references.append(Reference(expected, tolerance))
        return tuple(references)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterable[Callable[[], Operation]]:
        """Empty: programs come from models."""
        return ()

    @classmethod
    def smallest(cls) -> OperatorProgram:
        one = Value((1,), "f32", "rows")
        return cls("relu", (one,), '[["relu",[{"value":0}],{}]]', (1,), (one,))

    @property
    def kernel_identity(self) -> dict[str, Any]:
        """See `Operation.kernel_identity`. Includes the version of the code that turns torch's operators into MLIR."""
        from dispatch_profiler.boo.fusion.programs.importing import importer_version

        return {**self.to_dict(), "importer": importer_version()}

    @property
    def attention(self) -> AttentionGeometry | None:
        """The attention that it is, apart from views; None if it is something else. Raises NotFusible for other attentions."""
        from dispatch_profiler.boo.fusion.programs.attention import attention_geometry
        from dispatch_profiler.boo.fusion.programs.operators import ATTENTION

        return attention_geometry(self) if f'"{ATTENTION}"' in self.calls else None

    @cached_property
    def update(self) -> CacheUpdate | None:
        """The rows that it replaces in one of its inputs; None if it is something else. Raises OperationError for other updates."""
        from dispatch_profiler.boo.fusion.programs.operators import UPDATES
        from dispatch_profiler.boo.fusion.programs.updates import update_of

        if UPDATES.isdisjoint(name for name, _, _ in self.parsed_calls):
            return None
        try:
            return update_of(self)
        except (NotFusible, ValueError, TypeError, KeyError, IndexError) as error:
            raise OperationError(f"program: it is no update: {error}"[:200]) from error

    @property
    def tuned_as(self) -> Operation:
        """See `Operation.tuned_as`: its attention, if a library may have an entry of it."""
        from dispatch_profiler.boo.fusion.programs.attention import plain_attention

        attention = self.attention
        found = None if attention is None else plain_attention(attention, self.element_type.name)
        return self if found is None else found

    def mlir(self, function: str) -> str:
        """MLIR text with the function `function`, which takes the operands, then the results, which it writes to."""
        from dispatch_profiler.boo.fusion.programs.attention import attention_text
        from dispatch_profiler.boo.fusion.programs.channelwise import PIECES, kernel_text
        from dispatch_profiler.boo.fusion.programs.copies import copy_text
        from dispatch_profiler.boo.fusion.programs.group_norm import group_norm_text
        from dispatch_profiler.boo.fusion.programs.importing import linalg_text
        from dispatch_profiler.boo.fusion.programs.operators import COPIES, GROUP_NORM, MOVES
        from dispatch_profiler.boo.fusion.programs.rows import row_text
        from dispatch_profiler.boo.fusion.programs.updates import update_text
        from dispatch_profiler.boo.fusion.programs.windows import WINDOWS, windows_text

        if self.attention is not None:
            return attention_text(self, function)
        if self.update is not None:
            return update_text(self, function)
        names = {name for name, _, _ in self.parsed_calls}
        writers = (
            (copy_text, names <= MOVES),
            (windows_text, not WINDOWS.isdisjoint(names)),
            (group_norm_text, GROUP_NORM in names),
            (kernel_text, not PIECES.isdisjoint(names)),
            (copy_text, names <= COPIES and not names <= MOVES),
            (row_text, True),
        )
        for writer, suits in writers:
            if suits:
                with suppress(NotFusible):
                    return writer(self, function)
        return linalg_text(self, function)

    def to_dict(self) -> dict[str, Any]:
        """See `Operation.to_dict`."""
        return {
            "kind": self.kind,
            "title": self.title,
            "inputs": [[list(each.shape), each.type, each.reading] for each in self.inputs],
            "calls": self.calls,
            "returned": list(self.returned),
            "outputs": [[list(each.shape), each.type, each.reading] for each in self.outputs],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatorProgram:
        """Inverse of `to_dict`. Ignores `kind`. Raises OperationError for other data."""
        try:
            inputs, outputs = (
                tuple(Value(tuple(shape), type_, reading) for shape, type_, reading in values[name])
                for name in ("inputs", "outputs")
            )
            return cls(values["title"], inputs, values["calls"], tuple(values["returned"]), outputs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OperationError(f"program: {error}"[:200]) from error


def _stored_error(values: np.ndarray, type_: ElementType) -> np.ndarray:
    """The error of rounding f32 to a type, infinite for numbers that are larger than the type has.

    Of a whole number that a rounded number is the nearest to, 1.
    """
    if type_.is_integer:
        return np.ones_like(values)
    if type_.name == "f32":
        return np.zeros_like(values)
    limits = type_.finfo()
    size = np.abs(values)
    error = 2 * type_.unit_roundoff * size + float(limits.smallest_normal)
    return np.where(size < float(limits.max), error, math.inf)


def _check_value(value: Value, types: Sequence[str]) -> None:
    shape = value.shape
    if not 0 < len(shape) <= _MAX_AXES or any(type(each) is not int or each < 1 for each in shape):
        raise OperationError(f"program: a tensor of shape {str(shape)[:80]}")
    if value.reading not in ("rows", "channels") or (value.reading == "channels" and len(shape) < 3):
        raise OperationError(f"program: a tensor of shape {shape} is not read as {str(value.reading)[:40]}")
    if value.type not in types or math.prod(shape) > 2**40:
        raise OperationError(f"program: a tensor of type {str(value.type)[:40]} and shape {shape}")


def _check_numbers(data: Any, count: int) -> None:
    """Raise OperationError unless every `{"value": n}` in `data` precedes the call `count`."""
    if isinstance(data, Mapping):
        number = data.get("value")
        if set(data) == {"value"} and (type(number) is not int or not 0 <= number < count):
            raise OperationError(f"program: a call takes the value {str(number)[:40]} of {count}")
        data = list(data.values())
    if isinstance(data, list):
        for each in data:
            _check_numbers(each, count)
