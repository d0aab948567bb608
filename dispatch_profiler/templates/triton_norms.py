"""Triton kernels of layer norms: rows of SIZE elements, which fit into the registers of a program.

Sums are in the type ACCUMULATOR. COLUMNS is the power of two that holds a row.
"""

# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def layer_norm(
    x, weight, bias, y, mean, rstd,
    COUNT: tl.constexpr, SIZE: tl.constexpr, EPS: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    ACCUMULATOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each program normalizes ROWS of COUNT rows. The variance is computed from centred elements."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    at = i[:, None] * SIZE + j[None, :]
    known = (i[:, None] < COUNT) & (j[None, :] < SIZE)
    values = tl.load(x + at, mask=known, other=0.0).to(ACCUMULATOR)
    means = tl.div_rn(tl.sum(values, 1), tl.full((ROWS,), SIZE, ACCUMULATOR))
    centred = tl.where(known, values - means[:, None], 0.0)
    variances = tl.div_rn(tl.sum(centred * centred, 1), tl.full((ROWS,), SIZE, ACCUMULATOR))
    rstds = tl.rsqrt(variances + EPS)
    values = centred * rstds[:, None]
    if WEIGHT:
        values *= tl.load(weight + j, mask=j < SIZE, other=0.0).to(ACCUMULATOR)[None, :]
    if BIAS:
        values += tl.load(bias + j, mask=j < SIZE, other=0.0).to(ACCUMULATOR)[None, :]
    tl.store(y + at, values.to(y.dtype.element_ty), mask=known)
    tl.store(mean + i, means, mask=i < COUNT)
    tl.store(rstd + i, rstds, mask=i < COUNT)


@triton.jit
def layer_norm_input_backward(
    dy, x, mean, rstd, weight, dx,
    COUNT: tl.constexpr, SIZE: tl.constexpr, WEIGHT: tl.constexpr,
    ACCUMULATOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each program computes the input's gradient of ROWS of COUNT rows."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    at = i[:, None] * SIZE + j[None, :]
    known = (i[:, None] < COUNT) & (j[None, :] < SIZE)
    gradients = tl.load(dy + at, mask=known, other=0.0).to(ACCUMULATOR)
    values = tl.load(x + at, mask=known, other=0.0).to(ACCUMULATOR)
    means = tl.load(mean + i, mask=i < COUNT, other=0.0)
    rstds = tl.load(rstd + i, mask=i < COUNT, other=0.0)
    values = tl.where(known, (values - means[:, None]) * rstds[:, None], 0.0)
    if WEIGHT:
        gradients *= tl.load(weight + j, mask=j < SIZE, other=0.0).to(ACCUMULATOR)[None, :]
    size = tl.full((ROWS,), SIZE, ACCUMULATOR)
    averages = tl.div_rn(tl.sum(gradients, 1), size)
    products = tl.div_rn(tl.sum(gradients * values, 1), size)
    values = rstds[:, None] * (gradients - averages[:, None] - values * products[:, None])
    tl.store(dx + at, values.to(dx.dtype.element_ty), mask=known)


@triton.jit
def layer_norm_weight_backward(
    dy, x, mean, rstd, dweight, dbias,
    COUNT: tl.constexpr, SIZE: tl.constexpr, BIAS: tl.constexpr,
    ACCUMULATOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Each program sums COLUMNS of SIZE columns over all rows, ROWS at a time."""
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known_j = j[None, :] < SIZE
    products = tl.zeros((ROWS, COLUMNS), ACCUMULATOR)
    sums = tl.zeros((ROWS, COLUMNS), ACCUMULATOR)
    # Triton pipelines loops without products only on request.
    for start in tl.range(0, COUNT, ROWS, num_stages=STAGES):
        i = start + tl.arange(0, ROWS)
        at = i[:, None] * SIZE + j[None, :]
        known = (i[:, None] < COUNT) & known_j
        gradients = tl.load(dy + at, mask=known, other=0.0).to(ACCUMULATOR)
        values = tl.load(x + at, mask=known, other=0.0).to(ACCUMULATOR)
        means = tl.load(mean + i, mask=i < COUNT, other=0.0)
        rstds = tl.load(rstd + i, mask=i < COUNT, other=0.0)
        products += gradients * ((values - means[:, None]) * rstds[:, None])
        sums += gradients
    tl.store(dweight + j, tl.sum(products, 0).to(dweight.dtype.element_ty), mask=j < SIZE)
    if BIAS:
        tl.store(dbias + j, tl.sum(sums, 0).to(dbias.dtype.element_ty), mask=j < SIZE)
