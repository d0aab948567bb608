"""What a program computes of each row of its tensors, such as an RMS norm, or the quantisation of activations.

Rows are along the last axis. A value has an element for each element of the rows, for each row, or for each column. In
passes over a row, what is reduced is added up or compared, and then used: the largest element in the first pass, and in the
second one, elements divided by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.values import Calls, Value

#: Elements of a row, at least and at most: more would be too many additions one after another.
_SHORTEST, _LONGEST = 16, 2**16


class Along(Enum):
    """What a value has an element for. A number has one element."""

    ELEMENTS = "elements"
    ROWS = "rows"
    COLUMNS = "columns"
    NUMBERS = "numbers"


class Expression(NamedTuple):
    """An operator, and its parts: other expressions by number; of an input, its number; of a number, its value."""

    name: str
    parts: tuple[Any, ...]
    along: Along


@dataclass(frozen=True)
class RowValue:
    """An expression by its number, with torch's shape."""

    number: int
    shape: tuple[int, ...]


@dataclass
class RowProgram:
    """Expressions by number, each once, after the expressions that are its parts; and the expressions of the results."""

    rows: int
    columns: int
    expressions: list[Expression] = field(default_factory=list)
    results: tuple[int, ...] = ()
    _numbers: dict[Expression, int] = field(default_factory=dict)

    def number(self, name: str, parts: Sequence[Any], along: Along) -> int:
        """The number of an expression."""
        expression = Expression(name, tuple(parts), along)
        number = self._numbers.setdefault(expression, len(self.expressions))
        if number == len(self.expressions):
            self.expressions.append(expression)
        return number

    def along(self, value: RowValue) -> Along:
        """What a value has an element for."""
        return self.expressions[value.number].along

    def parts(self, number: int) -> tuple[int, ...]:
        """The expressions that an expression has."""
        name, parts, _ = self.expressions[number]
        return () if name in ("input", "number") else parts

    def passes(self) -> list[list[int]]:
        """The reductions of each pass over a row but the last one, which stores results."""
        depth: list[int] = []
        for number, expression in enumerate(self.expressions):
            before = max((depth[each] for each in self.parts(number)), default=0)
            depth.append(before + (expression.name in REDUCTIONS))
        found: list[list[int]] = [[] for _ in range(max(depth, default=0))]
        for number, expression in enumerate(self.expressions):
            if expression.name in REDUCTIONS:
                found[depth[number] - 1].append(number)
        return found

    @property
    def has_reductions(self) -> bool:
        """Whether rows are reduced."""
        return any(each.name in REDUCTIONS for each in self.expressions)


def row_program(program: Calls) -> RowProgram:
    """What `program` computes of each row. Raises NotFusible if it does something else."""
    values = (*program.inputs, *program.outputs)
    if any(each.reading != "rows" for each in values):
        raise NotFusible("a tensor is not stored in rows")
    columns = max(each.shape[-1] for each in values)
    rows = max(math.prod(each.shape) for each in values) // columns
    if not _SHORTEST <= columns <= _LONGEST:
        raise NotFusible(f"rows have {columns} elements")
    found = RowProgram(rows, columns)
    known: list[Any] = [_input(found, at, value) for at, value in enumerate(program.inputs)]
    for name, arguments, named in program.parsed_calls:
        if name not in _OPERATORS or named:
            raise NotFusible(f"{name} is not computed by rows")
        try:
            known.append(_OPERATORS[name](found, *_filled(arguments, known)))
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise NotFusible(f"{name}: {error}") from error
    results = [known[each] for each in program.returned]
    for each, value in zip(results, program.outputs, strict=True):
        if each.shape != value.shape or found.along(each) not in (Along.ELEMENTS, Along.ROWS):
            raise NotFusible("a result is neither rows nor a value for each row")
    found.results = tuple(each.number for each in results)
    return found


def _filled(data: Any, values: Sequence[Any]) -> Any:
    if isinstance(data, list):
        return [_filled(each, values) for each in data]
    return values[data["value"]] if isinstance(data, dict) else data


def _input(program: RowProgram, at: int, value: Value) -> RowValue:
    return RowValue(program.number("input", (at,), _along(program, value.shape)), value.shape)


def _along(program: RowProgram, shape: tuple[int, ...]) -> Along:
    """What a tensor of this shape has an element for. Raises NotFusible for other tensors."""
    rows = math.prod(shape[:-1])
    if shape[-1] == program.columns and rows == program.rows:
        return Along.ELEMENTS
    if shape[-1] == program.columns and rows == 1:
        return Along.COLUMNS
    if shape[-1] == 1 and rows == program.rows:
        return Along.ROWS
    raise NotFusible("a tensor has other rows")


# -- operators ---------------------------------------------------------------------------------------


def _value(program: RowProgram, given: RowValue | float) -> RowValue:
    if isinstance(given, RowValue):
        return given
    if type(given) not in (int, float) or not math.isfinite(given):
        raise NotFusible(f"an argument is {str(given)[:40]}")
    return RowValue(program.number("number", (float(given),), Along.NUMBERS), ())


def _computed(program: RowProgram, name: str, *given: RowValue | float) -> RowValue:
    """An operator on values that broadcast."""
    values = [_value(program, each) for each in given]
    kinds = {program.along(each) for each in values} - {Along.NUMBERS}
    along = Along.NUMBERS if not kinds else kinds.pop() if len(kinds) == 1 else Along.ELEMENTS
    shape = _broadcast([each.shape for each in values])
    if along is Along.ELEMENTS and not all(_is_aligned(program, each) for each in values):
        raise NotFusible("it broadcasts along other axes")
    return RowValue(program.number(name, [each.number for each in values], along), shape)


def _is_aligned(program: RowProgram, value: RowValue) -> bool:
    """Whether the last axis of a value is the axis of the rows, also if it has one element."""
    along = program.along(value)
    return along is Along.NUMBERS or along is _along(program, value.shape)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The joint shape, where each has all leading axes of another one, or only axes of one element."""
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(each)) + each for each in shapes]
    shape = tuple(map(max, zip(*padded, strict=True)))
    for each in padded:
        if math.prod(each[:-1]) > 1 and each[:-1] != shape[:-1]:
            raise NotFusible("it broadcasts along rows")
    return shape


def _of_one(name: str) -> Callable[..., RowValue]:
    return lambda program, x: _computed(program, name, x)


def _of_two(name: str) -> Callable[..., RowValue]:
    return lambda program, x, y: _computed(program, name, x, y)


def _reduced(name: str) -> Callable[..., RowValue]:
    def compute(program: RowProgram, x: RowValue, dim: Any, keepdim: bool = False) -> RowValue:
        axes = [each % len(x.shape) for each in (dim if isinstance(dim, list) else [dim])]
        if axes != [len(x.shape) - 1] or program.along(x) is not Along.ELEMENTS:
            raise NotFusible("it does not reduce rows")
        shape = (*x.shape[:-1], 1) if keepdim else x.shape[:-1]
        return RowValue(program.number(name, [x.number], Along.ROWS), shape)

    return compute


def _mean(program: RowProgram, x: RowValue, dim: Any, keepdim: bool = False) -> RowValue:
    total = _reduced("sum")(program, x, dim, keepdim)
    return _computed(program, "div", total, float(program.columns))


def _reshape(program: RowProgram, x: RowValue, shape: list[int]) -> RowValue:
    known = math.prod(each for each in shape if each != -1)
    extents = tuple(math.prod(x.shape) // known if each == -1 else each for each in shape)
    last = {Along.ELEMENTS: (program.columns,), Along.COLUMNS: (program.columns,)}.get(program.along(x), ())
    if not extents or (last and extents[-1:] != last):
        raise NotFusible("it regroups rows")
    return RowValue(x.number, extents)


def _unsqueeze(program: RowProgram, x: RowValue, dim: int) -> RowValue:
    at = dim % (len(x.shape) + 1)
    return _reshape(program, x, [*x.shape[:at], 1, *x.shape[at:]])


def _power(program: RowProgram, x: RowValue, exponent: float) -> RowValue:
    if exponent == 2:
        return _computed(program, "mul", x, x)
    if exponent == 0.5:
        return _computed(program, "sqrt", x)
    if exponent in (-0.5, -1):
        root = _computed(program, "sqrt", x) if exponent == -0.5 else x
        return _computed(program, "div", 1.0, root)
    raise NotFusible(f"it is the power {exponent}")


def _clamp(program: RowProgram, x: RowValue, low: Any = None, high: Any = None) -> RowValue:
    for name, bound in (("at_least", low), ("at_most", high)):
        if bound is not None:
            x = _computed(program, name, x, bound)
    return x


def _softmax(program: RowProgram, x: RowValue, dim: int, half_to_float: bool) -> RowValue:
    largest = _reduced("amax")(program, x, dim, True)
    powers = _computed(program, "exp", _computed(program, "sub", x, largest))
    return _computed(program, "div", powers, _reduced("sum")(program, powers, dim, True))


def _same(_: RowProgram, x: RowValue) -> RowValue:
    return x


#: Names of reductions.
REDUCTIONS = frozenset(("amax", "amin", "sum"))
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{
        f"{name}.{overload}": _of_two(name)
        for name in ("add", "sub", "mul", "div")
        for overload in ("Tensor", "Scalar")
    },
    **{name: _of_one(name) for name in ("abs", "exp", "neg", "relu", "round", "sigmoid", "silu", "sqrt")},
    **{name: _of_two(name) for name in ("maximum", "minimum")},
    **{name: _reduced(name) for name in ("amax", "amin")},
    "_softmax": _softmax,
    "alias": _same,
    "clamp": _clamp,
    "clamp_max": lambda program, x, bound: _clamp(program, x, None, bound),
    "clamp_min": _clamp,
    "clone": _same,
    "mean.dim": _mean,
    "pow.Tensor_Scalar": _power,
    "reciprocal": lambda program, x: _power(program, x, -1),
    "reshape": _reshape,
    "rsqrt": lambda program, x: _power(program, x, -0.5),
    "rsub.Scalar": lambda program, x, number: _computed(program, "sub", number, x),
    "sum.dim_IntList": _reduced("sum"),
    "unsqueeze": _unsqueeze,
}
