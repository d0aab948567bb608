"""Parts of several Triton kernels: activations, the order of tiles, loads, and products of blocks."""

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
def activated(x, NAME: tl.constexpr):
    """The activations of `operations.epilogues`, in the accumulator's type."""
    if NAME == "relu":
        x = tl.maximum(x, 0, propagate_nan=tl.PropagateNan.ALL)
    if NAME == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.70710678118654752))
    if NAME == "sigmoid":
        x = 1.0 / (1.0 + tl.exp(-x))
    if NAME == "tanh":
        x = _tanh(x)
    return x


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
        found = tl.load(at)
    elif ROWS_FIT:
        found = tl.load(at, mask=columns, other=0.0)
    elif COLUMNS_FIT:
        found = tl.load(at, mask=rows, other=0.0)
    else:
        found = tl.load(at, mask=rows & columns, other=0.0)
    return found
