"""Triton kernels of batched matrix products, with epilogues.

Only the `compiler` package imports the files of kernels, because they need Triton. Shapes, strides and tiles
are compile-time constants, so one source serves every layout and is compiled once for each dispatch. A slice
of a split reduction is an element of the batch: only the strides differ.

    result[b, m, n] = activation(sum_k lhs[b, m, k] * rhs[b, k, n] + bias[n])
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from dispatch_profiler.templates.triton_common import activated, grouped, masked, multiplied


@triton.jit
def _product_tile(
    lhs, rhs, bias, result, tile,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    LHS_BATCH: tl.constexpr, LHS_M: tl.constexpr, LHS_K: tl.constexpr,
    RHS_BATCH: tl.constexpr, RHS_K: tl.constexpr, RHS_N: tl.constexpr,
    ACCUMULATOR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m: tl.constexpr = (M + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (N + TILE_N - 1) // TILE_N
    batch = tile // (tiles_m * tiles_n)
    row, column = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    x_at = lhs + batch * LHS_BATCH + m[:, None] * LHS_M + k[None, :] * LHS_K
    y_at = rhs + batch * RHS_BATCH + k[:, None] * RHS_K + n[None, :] * RHS_N
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    for start in range(0, K, TILE_K):
        x = masked(x_at, m[:, None] < M, start + k[None, :] < K, M % TILE_M == 0, K % TILE_K == 0)
        y = masked(y_at, start + k[:, None] < K, n[None, :] < N, K % TILE_K == 0, N % TILE_N == 0)
        sums = multiplied(x, y, sums, ACCUMULATOR, PRECISION)
        x_at += TILE_K * LHS_K
        y_at += TILE_K * RHS_K
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < N).to(ACCUMULATOR)[None, :]
    sums = activated(sums, ACTIVATION)
    at = result + batch * (M * N) + m[:, None] * N + n[None, :]
    tl.store(at, sums.to(result.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def product(
    lhs, rhs, bias, result,
    BATCH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    LHS_BATCH: tl.constexpr, LHS_M: tl.constexpr, LHS_K: tl.constexpr,
    RHS_BATCH: tl.constexpr, RHS_K: tl.constexpr, RHS_N: tl.constexpr,
    ACCUMULATOR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """One program per tile, or PERSISTENT programs that loop over the tiles."""
    tiles: tl.constexpr = BATCH * ((M + TILE_M - 1) // TILE_M) * ((N + TILE_N - 1) // TILE_N)
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    for tile in range(tl.program_id(0), tiles, step):
        _product_tile(
            lhs, rhs, bias, result, tile, M, N, K, LHS_BATCH, LHS_M, LHS_K, RHS_BATCH, RHS_K, RHS_N,
            ACCUMULATOR, HAS_BIAS, ACTIVATION, PRECISION, TILE_M, TILE_N, TILE_K, GROUP,
        )  # fmt: skip


@triton.jit
def product_by_descriptors(
    lhs, rhs, bias, result,
    BATCH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    LHS_BATCH: tl.constexpr, LHS_M: tl.constexpr, LHS_K: tl.constexpr,
    RHS_BATCH: tl.constexpr, RHS_K: tl.constexpr, RHS_N: tl.constexpr,
    ACCUMULATOR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """`product` with operands that the bulk copy engine (TMA) loads.

    Every program creates its descriptors in the global scratch memory of the launch.
    """
    tiles_m: tl.constexpr = (M + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (N + TILE_N - 1) // TILE_N
    tiles: tl.constexpr = BATCH * tiles_m * tiles_n
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    lhs_rows: tl.constexpr = LHS_K == 1
    rhs_rows: tl.constexpr = RHS_N == 1
    if lhs_rows:
        x_tiles = tl.make_tensor_descriptor(lhs, [BATCH, M, K], [LHS_BATCH, LHS_M, 1], [1, TILE_M, TILE_K])
    else:
        x_tiles = tl.make_tensor_descriptor(lhs, [BATCH, K, M], [LHS_BATCH, LHS_K, 1], [1, TILE_K, TILE_M])
    if rhs_rows:
        y_tiles = tl.make_tensor_descriptor(rhs, [BATCH, K, N], [RHS_BATCH, RHS_K, 1], [1, TILE_K, TILE_N])
    else:
        y_tiles = tl.make_tensor_descriptor(rhs, [BATCH, N, K], [RHS_BATCH, RHS_N, 1], [1, TILE_N, TILE_K])
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=PERSISTENT > 0):
        batch = tile // (tiles_m * tiles_n)
        row, column = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        at_m, at_n = row * TILE_M, column * TILE_N
        sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
        for start in range(0, K, TILE_K):
            if lhs_rows:
                x = x_tiles.load([batch, at_m, start]).reshape([TILE_M, TILE_K])
            else:
                x = x_tiles.load([batch, start, at_m]).reshape([TILE_K, TILE_M]).T
            if rhs_rows:
                y = y_tiles.load([batch, start, at_n]).reshape([TILE_K, TILE_N])
            else:
                y = y_tiles.load([batch, at_n, start]).reshape([TILE_N, TILE_K]).T
            sums = multiplied(x, y, sums, ACCUMULATOR, PRECISION)
        m = at_m + tl.arange(0, TILE_M)
        n = at_n + tl.arange(0, TILE_N)
        if HAS_BIAS:
            sums += tl.load(bias + n, mask=n < N).to(ACCUMULATOR)[None, :]
        sums = activated(sums, ACTIVATION)
        at = result + batch * (M * N) + m[:, None] * N + n[None, :]
        tl.store(at, sums.to(result.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))
