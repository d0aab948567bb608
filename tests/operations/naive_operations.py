"""What operations mean, element by element: the independent truth, with strategies to draw from.

Nothing here calls the package's arithmetic. Sums are Fractions, rounding is done on Fractions, and
activations come from `math`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
from epilogue_helpers import ACTIVATION_NAMES, simple
from hypothesis import settings
from hypothesis import strategies as st
from naive_convolutions import ROLES, SPATIAL, conv_layout, conv_terms, extents_of, layouts

from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)

#: Of every property here: the same examples in every run, and no clock.
PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)

FLOATS = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2")
#: name -> (bits of the significand, exponent of the least normal number, largest finite value)
FORMATS = {
    "f64": (53, -1022, 1.7976931348623157e308),
    "f32": (24, -126, 3.4028234663852886e38),
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, 3.3895313892515355e38),
    "f8E4M3FN": (4, -6, 448.0),
    "f8E5M2": (3, -14, 57344.0),
}
DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "i32": np.int32,
}
ACCUMULATORS = {**dict.fromkeys(FLOATS, "f32"), "f64": "f64", "i8": "i32"}
#: Every valid (input, result): sums are never narrower than the result.
TYPE_PAIRS = (
    *((input_, result) for input_ in FLOATS for result in FLOATS if result != "f64" or input_ == "f64"),
    ("i8", "i32"),
)
FLOAT_PAIRS = TYPE_PAIRS[:-1]
#: Of a product, lhs and rhs may have different types.
MIXED_PAIRS = tuple(
    (f"{lhs}x{rhs}", result)
    for lhs in (*FLOATS, "i8")
    for rhs in (*FLOATS, "i8")
    for result in FLOATS
    if (lhs != rhs or lhs == "i8") and (result != "f64" or "f64" in (lhs, rhs))
)

Index = tuple[int, ...]
Pairs = list[tuple[float, float]]


# -- strategies ------------------------------------------------------------------------------------


def element_types(pair: tuple[str, str]) -> ElementTypes:
    """`("f16", "f32")` -> f16 inputs with an f32 result; `("f16xi8", "f32")` -> f16 times i8."""
    lhs, _, rhs = pair[0].partition("x")
    return ElementTypes(lhs, rhs or lhs, pair[1])


def accumulator_of(types: ElementTypes) -> str:
    """The type that the sums have."""
    if types.lhs == types.rhs and (types.lhs != "i8" or types.result == "i32"):
        return ACCUMULATORS[types.lhs]
    return "f64" if "f64" in (types.lhs, types.rhs) else "f32"


def _epilogues(types: ElementTypes, names: Sequence[str]) -> st.SearchStrategy[Epilogue]:
    allowed = [name for name in names if types.result != "i32" or name in ("none", "relu")]
    return st.builds(simple, st.booleans(), st.sampled_from(allowed))


@st.composite
def matmuls(
    draw: st.DrawFn,
    pairs: Sequence[tuple[str, str]] = (*TYPE_PAIRS, *MIXED_PAIRS),
    activations: Sequence[str] = ACTIVATION_NAMES,
    extents: st.SearchStrategy[int] = st.integers(1, 5),
) -> Operation:
    """A matmul or a batch_matmul."""
    types = element_types(draw(st.sampled_from(pairs)))
    shape = [draw(extents) for _ in range(3)]
    rest = (
        types,
        draw(st.sampled_from("tn")),
        draw(st.sampled_from("tn")),
        draw(_epilogues(types, activations)),
    )
    batch = draw(st.none() | st.integers(1, 3))
    return Matmul(*shape, *rest) if batch is None else BatchMatmul(batch, *shape, *rest)


@st.composite
def convolutions(
    draw: st.DrawFn,
    pairs: Sequence[tuple[str, str]] = TYPE_PAIRS,
    activations: Sequence[str] = ACTIVATION_NAMES,
    kinds: Sequence[type[Convolution]] = (Conv1d, Conv2d, Conv3d),
) -> Convolution:
    """A convolution that exists: of any rank, mode, layout, stride, padding, dilation and grouping."""
    kind = draw(st.sampled_from(kinds))
    axes, taps = SPATIAL[kind]
    most = 2 if kind is Conv3d else 3  # more would have thousands of products

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in axes)

    sizes, stride, dilation = each(1, most), each(1, 3), each(1, 2)
    before = each(0, most - 1)
    after = draw(st.none() | st.just(each(0, most - 1)))
    least = [
        max(1, (size - 1) * step + 1 - low - high)
        for size, step, low, high in zip(sizes, dilation, before, after or before, strict=True)
    ]
    extents = {axis: draw(st.integers(size, size + most - 1)) for axis, size in zip(axes, least, strict=True)}
    extents |= dict(zip(taps, sizes, strict=True))
    groups = draw(st.integers(1, most))
    types, mode = element_types(draw(st.sampled_from(pairs))), draw(st.sampled_from(tuple(ROLES)))
    return kind(
        n=draw(st.integers(1, most - 1)), c=groups * draw(st.integers(1, 2)), k=groups * draw(st.integers(1, 2)),
        **extents, stride=stride, padding=before, dilation=dilation, groups=groups, layout=draw(layouts(axes)),
        types=types, padding_after=after, mode=mode,
        epilogue=Epilogue() if mode == "weight_backward" else draw(_epilogues(types, activations)),
    )  # fmt: skip


def operations(
    pairs: Sequence[tuple[str, str]] = TYPE_PAIRS, activations: Sequence[str] = ACTIVATION_NAMES
) -> st.SearchStrategy[Operation]:
    """Any operation, with so few elements that it can be computed by hand."""
    mixed = MIXED_PAIRS if pairs is TYPE_PAIRS else ()
    return matmuls((*pairs, *mixed), activations) | convolutions(pairs, activations)


def seeds() -> st.SearchStrategy[int]:
    """Of the numbers that fill the inputs."""
    return st.integers(0, 2**32 - 1)


# -- inputs ----------------------------------------------------------------------------------------


def _holds(name: str) -> int:
    """Every whole number up to this is a value of the type."""
    return 127 if name == "i8" else 2 ** FORMATS[name][0]


def _amplitude(operation: Operation) -> int:
    """The largest whole numbers whose sums are exact in the accumulator and finite in the result."""
    types = operation.types
    if types.result == "i32":
        return 127
    room = min(2 ** FORMATS[accumulator_of(types)][0], int(FORMATS[types.result][2]))
    return max(
        1, min(_holds(types.lhs), _holds(types.rhs), math.isqrt(room // (2 * reduction_size(operation))))
    )


def whole_numbers(operation: Operation, seed: int) -> list[np.ndarray]:
    """Inputs of whole numbers as large as the exact path takes, so that narrow results round.

    A bias may be as large as the result holds whole; of i32, any: its sums wrap around.
    """
    rng = np.random.default_rng(seed)
    largest = _amplitude(operation)
    arrays = [
        rng.integers(-largest, largest, tensor.shape, endpoint=True).astype(DTYPES[tensor.type.name])
        for tensor in operation.operands[:2]
    ]
    for tensor in operation.operands[2:]:
        result = operation.types.result
        limit = 2**31 - 1 if result == "i32" else min(_holds(result), 100)
        arrays.append(rng.integers(-limit, limit, tensor.shape, endpoint=True).astype(DTYPES[result]))
    return arrays


def reals(operation: Operation, seed: int) -> list[np.ndarray]:
    """Inputs below 2 in magnitude, their exponents scattered."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-127, 127, tensor.shape, np.int8, endpoint=True)
        if tensor.type.is_integer
        else (
            rng.uniform(-1, 1, tensor.shape) * 2.0 ** rng.integers(-4, 1, tensor.shape, endpoint=True)
        ).astype(tensor.type.dtype)
        for tensor in operation.operands
    ]


# -- meaning ---------------------------------------------------------------------------------------


def reduction_size(operation: Operation) -> int:
    """How many products are summed into one element, at most; those with padding count in a forward convolution."""
    if not isinstance(operation, Convolution):
        return operation.k
    if operation.mode == "forward":
        return math.prod(operation.filter_size) * (operation.c // operation.groups)
    counts = Counter(index[ROLES[operation.mode][2]] for index in conv_terms(operation))
    return max(counts.values(), default=1)


def output_shape(operation: Operation) -> Index:
    """The result's shape; that of a forward convolution by counting where a filter can stand."""
    if isinstance(operation, Convolution):
        role = ROLES[operation.mode][2]
        extents = extents_of(operation, role)
        return tuple(extents[letter] for letter in conv_layout(operation, role))
    batch = (operation.batch,) if isinstance(operation, BatchMatmul) else ()
    return (*batch, operation.m, operation.n)


def products(operation: Operation, lhs: np.ndarray, rhs: np.ndarray) -> dict[Index, Pairs]:
    """Result index -> the factors of the products that are summed there (padding left out)."""
    lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    if isinstance(operation, Convolution):
        found: dict[Index, Pairs] = {index: [] for index in np.ndindex(output_shape(operation))}
        left, right, result = ROLES[operation.mode]
        for term in conv_terms(operation):
            found[term[result]].append((float(lhs[term[left]]), float(rhs[term[right]])))
        return found
    return {
        index: [(float(lhs[a]), float(rhs[b])) for a, b in _matmul_factors(operation, index)]
        for index in np.ndindex(output_shape(operation))
    }


def _matmul_factors(operation: Matmul | BatchMatmul, index: Index) -> Iterator[tuple[Index, Index]]:
    *batch, m, n = index
    for k in range(operation.k):
        yield (
            (*batch, m, k) if operation.lhs_layout == "t" else (*batch, k, m),
            (*batch, k, n) if operation.rhs_layout == "t" else (*batch, n, k),
        )


def exact_sum(pairs: Iterable[tuple[float, float]]) -> Fraction:
    """The sum of products, without any rounding."""
    return sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0))


def channel_of(operation: Operation, index: Index) -> int:
    """The column of an element of a product, or its channel."""
    if not isinstance(operation, Convolution):
        return index[-1]
    return index[conv_layout(operation, ROLES[operation.mode][2]).index("c")]


def bias_at(operation: Operation, inputs: Sequence[np.ndarray], index: Index) -> float:
    """The bias of one element: of its column, or of its output channel; 0 without one."""
    if not operation.epilogue.starts_with_bias:
        return 0.0
    return float(inputs[2][channel_of(operation, index)])


def activated(name: str, x: float) -> float:
    """The activation in float64, with no cancellation anywhere."""
    functions: dict[str, Callable[[float], float]] = {
        "none": lambda x: x,
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2.0)),
        "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
        "tanh": math.tanh,
    }
    return functions[name](x)


def activation_of(operation: Operation) -> str:
    """The activation of a simple epilogue, as its name is written."""
    return str(operation.epilogue).removeprefix("bias").removeprefix("+") or "none"


def stepped(text: str, x: float, operands: Sequence[float] = ()) -> float:
    """One step of an epilogue as it is written, in float64."""
    name, *numbers = re.split(r"[(,)]", text.removesuffix(")"))
    values = [float(number) for number in numbers]
    if name in ("bias", "residual"):
        return x + operands[0] * (values[0] if values else 1.0)
    if name in ("channel_scale", "row_scale"):
        return x * operands[0]
    if name == "scale_shift":
        return x * operands[0] + operands[1]
    functions: dict[str, Callable[[], float]] = {
        "scale": lambda: x * values[0],
        "relu6": lambda: min(max(x, 0.0), 6.0),
        "clamp": lambda: min(max(x, values[0]), values[1]),
        "leaky_relu": lambda: x if x >= 0 else x * (values[0] if values else 0.01),
        "hardswish": lambda: x * min(max(x + 3.0, 0.0), 6.0) / 6.0,
        "hardsigmoid": lambda: min(max(x + 3.0, 0.0), 6.0) / 6.0,
        "silu": lambda: x * activated("sigmoid", x) if x > -700 else 0.0,
        "gelu_tanh": lambda: 0.5 * x * (1.0 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    }
    return functions[name]() if name in functions else activated(name, x)


def steps_in(epilogue: Epilogue) -> list[str]:
    """The steps of an epilogue as they are written: its text, cut at each + outside parentheses."""
    return [] if epilogue.is_empty else re.split(r"\+(?![^(]*\))", str(epilogue))


def operand_count(step: str) -> int:
    return {"bias": 1, "residual": 1, "channel_scale": 1, "row_scale": 1, "scale_shift": 2}.get(
        step.partition("(")[0], 0
    )


def after_epilogue(operation: Operation, inputs: Sequence[np.ndarray], index: Index, x: float) -> float:
    """The element at `index` after every step, without any rounding but that of float64."""
    channel = channel_of(operation, index)
    rest = [_element(each, channel, index) for each in inputs[2:]]
    for step in steps_in(operation.epilogue):
        count = operand_count(step)
        x, rest = stepped(step, x, rest[:count]), rest[count:]
    return x


def _element(operand: np.ndarray, channel: int, index: Index) -> float:
    """The element of an operand that a step has at `index`: of the channel, the row, or the index itself."""
    if operand.ndim == 1:
        return float(operand[channel])
    return float(operand[(*index[:-1], min(index[-1], operand.shape[-1] - 1))])


def rounded(value: Fraction, type_: str) -> float:
    """`value` rounded once to the nearest number of a type, ties to even (no overflow)."""
    if value == 0:
        return 0.0
    bits, least, _ = FORMATS[type_]
    exponent = _exponent(value)
    quantum = Fraction(2) ** (max(exponent, least) - bits + 1)
    return float(round(value / quantum) * quantum)


def _exponent(value: Fraction) -> int:
    """The e of 2**e <= |value| < 2**(e + 1)."""
    guess = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return guess if abs(value) >= Fraction(2) ** guess else guess - 1


def wrapped(value: int) -> int:
    """What a 32-bit register holds of `value`."""
    return (value + 2**31) % 2**32 - 2**31


# -- kernels ---------------------------------------------------------------------------------------


def kernel_value(operation: Operation, pairs: Pairs, bias: float) -> float:
    """What a kernel stores that adds `pairs` one by one in the accumulator's own arithmetic."""
    held = DTYPES[accumulator_of(operation.types)]
    total = held(0)
    for a, b in pairs:
        total = total + held(a) * held(b)
    if operation.epilogue.starts_with_bias:
        total = total + held(bias)
    value = _kernel_activation(activation_of(operation), total, held)
    return float(np.asarray(value, held).astype(DTYPES[operation.types.result]))


def _kernel_activation(name: str, x: np.floating, held: type) -> np.floating:
    one, half = held(1), held(0.5)
    if name == "relu":
        return max(x, held(0))
    if name == "gelu":
        return half * x * (one + held(math.erf(x * held(math.sqrt(0.5)))))
    if name == "sigmoid":
        return one / (one + held(math.exp(-x)))
    return held(math.tanh(x)) if name == "tanh" else x
