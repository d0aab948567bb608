"""Parts of several Triton kernels: epilogues, the order of tiles, loads, and products of blocks."""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """Cephes (S. L. Moshier), tanhf: a polynomial near 0, where 1 - 2 / (1 + exp(2x)) cancels."""
    z = x * x
    near = -5.70498872745e-3 * z + 2.06390887954e-2
    near = near * z - 5.37397155531e-2
    near = near * z + 1.33314422036e-1
    near = near * z - 3.33332819422e-1
    near = near * z * x + x
    magnitude = tl.abs(x)
    far = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * magnitude))
    far = tl.where(x < 0.0, -far, far)
    return tl.where(magnitude < 0.625, near, far)


@triton.jit
def _clamped(x, low: tl.constexpr, high: tl.constexpr):
    """NaN stays NaN."""
    raised = tl.maximum(x, low, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(raised, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _hardsigmoid(x):
    return _clamped(x + 3.0, 0, 6) * 0.16666666666666667


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _activated(x, NAME: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """x after a step without operands, whose parameters are FIRST and SECOND."""
    if NAME == "relu":
        x = tl.maximum(x, 0, propagate_nan=tl.PropagateNan.ALL)
    elif NAME == "relu6":
        x = _clamped(x, 0, 6)
    elif NAME == "clamp":
        x = _clamped(x, FIRST, SECOND)
    elif NAME == "scale":
        x = x * FIRST
    elif NAME == "leaky_relu":
        x = tl.where(x >= 0.0, x, x * FIRST)
    elif NAME == "hardswish":
        x = x * _hardsigmoid(x)
    elif NAME == "hardsigmoid":
        x = _hardsigmoid(x)
    elif NAME == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.70710678118654752))
    elif NAME == "gelu_tanh":
        x = 0.5 * x * (1.0 + _tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)))
    elif NAME == "silu":
        x = x * _sigmoid(x)
    elif NAME == "sigmoid":
        x = _sigmoid(x)
    else:
        tl.static_assert(NAME == "tanh", "the step of an epilogue has no kernel")
        x = _tanh(x)
    return x


@triton.jit
def _of_channels(operand, channel, known, x):
    """A value for each column of x, in its type."""
    return tl.load(operand + channel, mask=known).to(x.dtype)[None, :]


@triton.jit
def _after_step(
    x, operands, at, stored, row, channel, known,
    NAME: tl.constexpr, PLACE: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    if NAME == "bias":
        x += _of_channels(operands[PLACE], channel, known, x)
    elif NAME == "channel_scale":
        x *= _of_channels(operands[PLACE], channel, known, x)
    elif NAME == "row_scale":
        x *= tl.load(operands[PLACE] + row + 0 * channel[None, :], mask=stored).to(x.dtype)
    elif NAME == "scale_shift":
        x *= _of_channels(operands[PLACE], channel, known, x)
        x += _of_channels(operands[PLACE + 1], channel, known, x)
    elif NAME == "residual":
        added = tl.load(operands[PLACE] + at, mask=stored).to(x.dtype)
        if FIRST != 1:
            added = added * FIRST
        x += added
    else:
        x = _activated(x, NAME, FIRST, SECOND)
    return x


@triton.constexpr_function
def _count(steps):
    return len(steps.split())


@triton.constexpr_function
def _name(steps, i):
    return steps.split()[i].split(":")[0]


@triton.constexpr_function
def _number(steps, i, j):
    parameter = steps.split()[i].split(":")[j]
    return int(parameter) if parameter.lstrip("-").isdigit() else float(parameter)


@triton.jit
def finish(x, operands, result, at, stored, row, channel, known, STEPS: tl.constexpr):
    """Store x at the offsets `at` of the result where `stored`, after the steps of its epilogue.

    `configurations.triton.epilogues` writes STEPS. The steps compute in the type of x. Operands have the shape
    of the result, or a value for each `channel` that is `known`: one for each column of x; or a value for each `row` of a
    product. Convolutions, which have no such step, pass anything.
    """
    for i in tl.static_range(_count(STEPS)):
        x = _after_step(
            x, operands, at, stored, row, channel, known,
            _name(STEPS, i), _number(STEPS, i, 1), _number(STEPS, i, 2), _number(STEPS, i, 3),
        )  # fmt: skip
    tl.store(result + at, x.to(result.dtype.element_ty), mask=stored)


@triton.jit
def grouped(tile, TILES_M: tl.constexpr, TILES_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of tile number `tile`: GROUP rows are computed together, so that columns stay in L2."""
    first = tile // (GROUP * TILES_N) * GROUP
    rows = min(TILES_M - first, GROUP)
    within = tile % (GROUP * TILES_N)
    return first + within % rows, within // rows


@triton.jit
def multiplied(x, y, sums, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr):
    """sums + x @ y. Tensor cores add f8 products with 14 bits, so f8 is converted to f16, which is added in f32."""
    if x.dtype == tl.float8e4nv:
        x, y = x.to(tl.float16), y.to(tl.float16)
    return tl.dot(x, y, sums, input_precision=PRECISION, out_dtype=ACCUMULATOR)


@triton.jit
def masked(at, rows, columns, ROWS_FIT: tl.constexpr, COLUMNS_FIT: tl.constexpr):
    """Load from `at`, with 0 outside; without a mask if the tiles divide the problem."""
    if ROWS_FIT and COLUMNS_FIT:
        loaded = tl.load(at)
    elif ROWS_FIT:
        loaded = tl.load(at, mask=columns, other=0.0)
    elif COLUMNS_FIT:
        loaded = tl.load(at, mask=rows, other=0.0)
    else:
        loaded = tl.load(at, mask=rows & columns, other=0.0)
    return loaded
