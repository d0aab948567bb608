"""Triton kernels: batched matrix products and convolutions as implicit GEMM, with epilogues.

Only the `compiler` package imports this file, by its path, because it needs Triton. Shapes, strides
and tiles are compile-time constants, so one source serves every layout and is compiled once for each
dispatch. A slice of a split reduction is an element of the batch: only the strides differ.

    result[b, m, n] = activation(sum_k lhs[b, m, k] * rhs[b, k, n] + bias[n])
"""

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
def _activated(x, NAME: tl.constexpr):
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
def _grouped(tile, TILES_M: tl.constexpr, TILES_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of tile number `tile`: GROUP rows are computed together, so that columns stay in L2."""
    first = tile // (GROUP * TILES_N) * GROUP
    rows = min(TILES_M - first, GROUP)
    within = tile % (GROUP * TILES_N)
    return first + within % rows, within // rows


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
    row, column = _grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    x_at = lhs + batch * LHS_BATCH + m[:, None] * LHS_M + k[None, :] * LHS_K
    y_at = rhs + batch * RHS_BATCH + k[:, None] * RHS_K + n[None, :] * RHS_N
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    for start in range(0, K, TILE_K):
        x = _masked(x_at, m[:, None] < M, start + k[None, :] < K, M % TILE_M == 0, K % TILE_K == 0)
        y = _masked(y_at, start + k[:, None] < K, n[None, :] < N, K % TILE_K == 0, N % TILE_N == 0)
        sums = _multiplied(x, y, sums, ACCUMULATOR, PRECISION)
        x_at += TILE_K * LHS_K
        y_at += TILE_K * RHS_K
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=n < N).to(ACCUMULATOR)[None, :]
    sums = _activated(sums, ACTIVATION)
    at = result + batch * (M * N) + m[:, None] * N + n[None, :]
    tl.store(at, sums.to(result.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _multiplied(x, y, sums, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr):
    """sums + x @ y. Tensor cores add f8 products with 14 bits, so f8 is converted to f16, which is added in f32."""
    if x.dtype == tl.float8e4nv:
        x, y = x.to(tl.float16), y.to(tl.float16)
    return tl.dot(x, y, sums, input_precision=PRECISION, out_dtype=ACCUMULATOR)


@triton.jit
def _masked(at, rows, columns, ROWS_FIT: tl.constexpr, COLUMNS_FIT: tl.constexpr):
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
        row, column = _grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
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
            sums = _multiplied(x, y, sums, ACCUMULATOR, PRECISION)
        m = at_m + tl.arange(0, TILE_M)
        n = at_n + tl.arange(0, TILE_N)
        if HAS_BIAS:
            sums += tl.load(bias + n, mask=n < N).to(ACCUMULATOR)[None, :]
        sums = _activated(sums, ACTIVATION)
        at = result + batch * (M * N) + m[:, None] * N + n[None, :]
        tl.store(at, sums.to(result.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _convolution_tile(
    lhs, rhs, bias, result, tile,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    NHWC: tl.constexpr,
    ACCUMULATOR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Rows are pixels of the result, columns are filters of one group; k covers taps and channels.

    CHANNELS and FILTERS are per group.
    """
    pixels: tl.constexpr = IMAGES * OH * OW
    tiles_m: tl.constexpr = (pixels + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (FILTERS + TILE_N - 1) // TILE_N
    reduced: tl.constexpr = R * S * CHANNELS
    # Strides in the image, the filter and the result.
    c_step: tl.constexpr = 1 if NHWC else H * W
    w_step: tl.constexpr = GROUPS * CHANNELS if NHWC else 1
    tap_step: tl.constexpr = CHANNELS * GROUPS * FILTERS if NHWC else 1
    c_filter: tl.constexpr = GROUPS * FILTERS if NHWC else R * S
    f_filter: tl.constexpr = 1 if NHWC else CHANNELS * R * S
    f_step: tl.constexpr = 1 if NHWC else OH * OW
    pixel_step: tl.constexpr = GROUPS * FILTERS if NHWC else 1
    whole_taps: tl.constexpr = CHANNELS % TILE_K == 0

    group = tile // (tiles_m * tiles_n)
    row, column = _grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    image, pixel = m // (OH * OW), m % (OH * OW)
    top = pixel // OW * STRIDE_H - PAD_H
    left = pixel % OW * STRIDE_W - PAD_W
    lhs += group * (CHANNELS * c_step)
    rhs += group * (FILTERS * f_filter)
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    for start in range(0, reduced, TILE_K):
        if whole_taps:
            # The whole step is within one tap, so its position is a scalar and its channels are contiguous.
            tap = start // CHANNELS
            c = start % CHANNELS + tl.arange(0, TILE_K)
            y = top[:, None] + tap // S * DILATION_H
            x = left[:, None] + tap % S * DILATION_W
            inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
            tap_at = tap * tap_step
            known = c >= 0
        else:
            k = start + tl.arange(0, TILE_K)
            tap = k // CHANNELS
            c = k % CHANNELS
            y = top[:, None] + (tap // S * DILATION_H)[None, :]
            x = left[:, None] + (tap % S * DILATION_W)[None, :]
            known = k < reduced
            inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & known[None, :]
            tap_at = (tap * tap_step)[:, None]
        at = image[:, None] * (H * W * GROUPS * CHANNELS) + (y * W + x) * w_step + c[None, :] * c_step
        window = tl.load(lhs + at, mask=inside & (m[:, None] < pixels), other=0.0)
        at = tap_at + c[:, None] * c_filter + n[None, :] * f_filter
        taps = tl.load(rhs + at, mask=known[:, None] & (n[None, :] < FILTERS), other=0.0)
        sums = _multiplied(window, taps, sums, ACCUMULATOR, PRECISION)
    f = group * FILTERS + n
    if HAS_BIAS:
        sums += tl.load(bias + f, mask=n < FILTERS).to(ACCUMULATOR)[None, :]
    sums = _activated(sums, ACTIVATION)
    at = image[:, None] * (OH * OW * GROUPS * FILTERS) + pixel[:, None] * pixel_step + f[None, :] * f_step
    stored = (m[:, None] < pixels) & (n[None, :] < FILTERS)
    tl.store(result + at, sums.to(result.dtype.element_ty), mask=stored)


@triton.jit
def convolution(
    lhs, rhs, bias, result,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    NHWC: tl.constexpr,
    ACCUMULATOR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """One program per tile, or PERSISTENT programs that loop over the tiles."""
    tiles_m: tl.constexpr = (IMAGES * OH * OW + TILE_M - 1) // TILE_M
    tiles: tl.constexpr = GROUPS * tiles_m * ((FILTERS + TILE_N - 1) // TILE_N)
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    for tile in range(tl.program_id(0), tiles, step):
        _convolution_tile(
            lhs, rhs, bias, result, tile, H, W, OH, OW, R, S, STRIDE_H, STRIDE_W, PAD_H, PAD_W, DILATION_H,
            DILATION_W, IMAGES, CHANNELS, FILTERS, GROUPS, NHWC, ACCUMULATOR, HAS_BIAS, ACTIVATION,
            PRECISION, TILE_M, TILE_N, TILE_K, GROUP,
        )  # fmt: skip
