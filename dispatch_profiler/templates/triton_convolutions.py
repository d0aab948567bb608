"""Triton kernels of convolutions in two dimensions, in any layout, as implicit GEMM.

Shapes, strides in elements and tiles are compile-time constants. CHANNELS and FILTERS are per group, and named
as the kernel sees them: in `convolution`, CHANNELS are summed over and FILTERS are channels of the result. Hence
the gradient of an input is a convolution of the output's gradient, with both exchanged:

    forward         result[y] = sum_r source[y * STRIDE + r * STEP + SHIFT] * filter[r]
    input_backward  with stride 1: the same with STEP = -dilation and SHIFT = padding

With a stride s, the rows y of an input's gradient with the same (y + padding) % s are a phase. Row number j of
phase p receives the taps r = p + s * i from rows j - i + SHIFT of the source, so no inserted zero is multiplied.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from dispatch_profiler.templates.triton_common import finish, grouped, multiplied


@triton.jit
def _phase(p, PHASES: tl.constexpr, TAPS: tl.constexpr, PADDING: tl.constexpr, SHIFT: tl.constexpr):
    """First row of phase `p` in the result, its SHIFT in the source, and its number of taps."""
    if PHASES == 1:
        first, shift, taps = 0, SHIFT, TAPS
    else:
        first = (p + (PHASES - PADDING % PHASES)) % PHASES
        shift = (first + PADDING - p) // PHASES
        taps = (TAPS - p + PHASES - 1) // PHASES
    return first, shift, taps


@triton.jit
def _step_at(
    start, base, top, left, n, taps, taps_w, phase_h, phase_w,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, PHASES_H: tl.constexpr, PHASES_W: tl.constexpr,
    CHANNELS: tl.constexpr, TILE_K: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr, LHS_C: tl.constexpr,
    RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr,
):  # fmt: skip
    """Offsets of a step's window and filters, the row and column of each element, and which k exist."""
    if CHANNELS % TILE_K == 0:
        # All taps of some channels follow each other: their windows overlap, so they are found in caches.
        step = start // TILE_K
        tap = step % taps
        c = step // taps * TILE_K + tl.arange(0, TILE_K)
        i, j = tap // taps_w, tap % taps_w
        moved = i * (STEP_H * LHS_H) + j * (STEP_W * LHS_W)
        at = (base + moved)[:, None] + c[None, :] * LHS_C
        tap_at = (phase_h + i * PHASES_H) * RHS_H + (phase_w + j * PHASES_W) * RHS_W
        filter_at = (c * RHS_C + tap_at)[:, None] + n[None, :] * RHS_F
        y, x = (top + i * STEP_H)[:, None], (left + j * STEP_W)[:, None]
        known_k = c[None, :] >= 0
    else:
        k = start + tl.arange(0, TILE_K)
        tap, c = k // CHANNELS, k % CHANNELS
        i, j = tap // taps_w, tap % taps_w
        moved = i * (STEP_H * LHS_H) + j * (STEP_W * LHS_W)
        at = base[:, None] + (moved + c * LHS_C)[None, :]
        tap_at = (phase_h + i * PHASES_H) * RHS_H + (phase_w + j * PHASES_W) * RHS_W
        filter_at = (c * RHS_C + tap_at)[:, None] + n[None, :] * RHS_F
        y, x = top[:, None] + (i * STEP_H)[None, :], left[:, None] + (j * STEP_W)[None, :]
        known_k = (k < taps * CHANNELS)[None, :]
    return at, filter_at, y, x, known_k


@triton.jit
def _step(
    lhs, rhs, at, filter_at, y, x, known_k, known_n,
    H: tl.constexpr, W: tl.constexpr, BOUNDED: tl.constexpr, ONE_TAP: tl.constexpr, FILTERS_FIT: tl.constexpr,
):  # fmt: skip
    """The window and the filters of a step, with 0 outside."""
    if BOUNDED:
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & known_k
        window = tl.load(lhs + at, mask=inside, other=0.0)
    elif ONE_TAP:
        window = tl.load(lhs + at)
    else:
        window = tl.load(lhs + at, mask=known_k, other=0.0)
    if ONE_TAP and FILTERS_FIT:
        weights = tl.load(rhs + filter_at)
    else:
        weights = tl.load(rhs + filter_at, mask=known_k.trans(1, 0) & known_n, other=0.0)
    return window, weights


@triton.jit
def _store_pixels(
    result, operands, sums, m, n, image, pixel, group, piece, first_h, first_w, columns: tl.constexpr,
    pixels: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, PHASES_H: tl.constexpr, PHASES_W: tl.constexpr,
    IMAGES: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    OUT_N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_F: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute the epilogue of the sums of a tile, and store the pixels that exist."""
    f = group * FILTERS + n
    out_h = pixel // columns * PHASES_H + first_h
    out_w = pixel % columns * PHASES_W + first_w
    at = (image * OUT_N + out_h * OUT_H + out_w * OUT_W)[:, None] + f[None, :] * OUT_F
    at += piece * (IMAGES * OH * OW * GROUPS * FILTERS)
    stored = (m < pixels) & (out_h < OH) & (out_w < OW)
    finish(sums, operands, result, at, stored[:, None] & (n[None, :] < FILTERS), at, f, n < FILTERS, STEPS)


@triton.jit
def _convolution_tile(
    lhs, rhs, operands, result, tile,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    PHASES_H: tl.constexpr, PHASES_W: tl.constexpr, BOUNDED: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    LHS_N: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr, LHS_C: tl.constexpr,
    RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr, RHS_G: tl.constexpr,
    OUT_N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_F: tl.constexpr,
    ACCUMULATOR: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """Rows are pixels of one phase of the result, columns are filters of one group; k covers taps and channels.

    With SLICES > 1, each tile sums up a slice of k and writes to its own copy of the result.
    """
    rows: tl.constexpr = (OH + PHASES_H - 1) // PHASES_H
    columns: tl.constexpr = (OW + PHASES_W - 1) // PHASES_W
    pixels: tl.constexpr = IMAGES * rows * columns
    tiles_m: tl.constexpr = (pixels + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (FILTERS + TILE_N - 1) // TILE_N

    part = tile // (tiles_m * tiles_n)
    group, phase = part % GROUPS, part // GROUPS
    piece, phase = phase // (PHASES_H * PHASES_W), phase % (PHASES_H * PHASES_W)
    phase_h, phase_w = phase // PHASES_W, phase % PHASES_W
    first_h, shift_h, taps_h = _phase(phase_h, PHASES_H, R, PADDING_H, SHIFT_H)
    first_w, shift_w, taps_w = _phase(phase_w, PHASES_W, S, PADDING_W, SHIFT_W)
    row, column = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    m = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    image, pixel = m // (rows * columns), m % (rows * columns)
    top = pixel // columns * STRIDE_H + shift_h
    left = pixel % columns * STRIDE_W + shift_w
    # Rows beyond the last read a pixel that is never stored.
    base = tl.where(m < pixels, image, 0) * LHS_N + top * LHS_H + left * LHS_W + group * (CHANNELS * LHS_C)
    rhs += group * RHS_G
    known_n = n[None, :] < FILTERS
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    taps = taps_h * taps_w
    length = (taps * CHANNELS + SLICES * TILE_K - 1) // (SLICES * TILE_K) * TILE_K
    for start in range(piece * length, min(taps * CHANNELS, (piece + 1) * length), TILE_K):
        at, filter_at, y, x, known_k = _step_at(
            start, base, top, left, n, taps, taps_w, phase_h, phase_w, STEP_H, STEP_W, PHASES_H, PHASES_W, CHANNELS,
            TILE_K, LHS_H, LHS_W, LHS_C, RHS_H, RHS_W, RHS_C, RHS_F,
        )  # fmt: skip
        window, weights = _step(
            lhs, rhs, at, filter_at, y, x, known_k, known_n, H, W, BOUNDED, CHANNELS % TILE_K == 0,
            FILTERS % TILE_N == 0,
        )  # fmt: skip
        sums = multiplied(window, weights, sums, ACCUMULATOR, PRECISION)
    _store_pixels(
        result, operands, sums, m, n, image, pixel, group, piece, first_h, first_w, columns, pixels, OH, OW,
        PHASES_H, PHASES_W, IMAGES, FILTERS, GROUPS, OUT_N, OUT_H, OUT_W, OUT_F, STEPS,
    )  # fmt: skip


@triton.jit
def convolution(
    lhs, rhs, operands, result,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    PHASES_H: tl.constexpr, PHASES_W: tl.constexpr, BOUNDED: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    LHS_N: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr, LHS_C: tl.constexpr,
    RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr, RHS_G: tl.constexpr,
    OUT_N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_F: tl.constexpr,
    ACCUMULATOR: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """One program per tile of a slice, phase and group, or PERSISTENT programs that loop over the tiles."""
    rows: tl.constexpr = (OH + PHASES_H - 1) // PHASES_H
    columns: tl.constexpr = (OW + PHASES_W - 1) // PHASES_W
    tiles_m: tl.constexpr = (IMAGES * rows * columns + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (FILTERS + TILE_N - 1) // TILE_N
    tiles: tl.constexpr = SLICES * PHASES_H * PHASES_W * GROUPS * tiles_m * tiles_n
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    for tile in range(tl.program_id(0), tiles, step):
        _convolution_tile(
            lhs, rhs, operands, result, tile, H, W, OH, OW, R, S, STRIDE_H, STRIDE_W, STEP_H, STEP_W, SHIFT_H,
            SHIFT_W, PADDING_H, PADDING_W, PHASES_H, PHASES_W, BOUNDED, IMAGES, CHANNELS, FILTERS, GROUPS,
            LHS_N, LHS_H, LHS_W, LHS_C, RHS_H, RHS_W, RHS_C, RHS_F, RHS_G, OUT_N, OUT_H, OUT_W, OUT_F,
            ACCUMULATOR, STEPS, PRECISION, TILE_M, TILE_N, TILE_K, GROUP, SLICES,
        )  # fmt: skip


@triton.jit
def _loaded(at, known, FITS: tl.constexpr):
    """With 0 where elements are not known, unless all are."""
    if FITS:
        loaded = tl.load(at)
    else:
        loaded = tl.load(at, mask=known, other=0.0)
    return loaded


@triton.jit
def _gradient_window(
    at, oy, ox, shift_h, shift_w, known_p, known_n,
    H: tl.constexpr, W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BOUNDED: tl.constexpr, FITS: tl.constexpr,
):  # fmt: skip
    """Pixels of the input that are multiplied by pixels of the gradient, with 0 outside."""
    if BOUNDED:
        y = (oy * STRIDE_H)[:, None] + shift_h[None, :]
        x = (ox * STRIDE_W)[:, None] + shift_w[None, :]
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
        window = tl.load(at, mask=inside if FITS else inside & known_p & known_n, other=0.0)
    else:
        window = _loaded(at, known_p & known_n, FITS)
    return window


@triton.jit
def weight_gradient(
    lhs, rhs, result,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, BOUNDED: tl.constexpr, FLAT: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, GROUPS: tl.constexpr,
    LHS_N: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr, LHS_F: tl.constexpr,
    RHS_N: tl.constexpr, RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_C: tl.constexpr, OUT_F: tl.constexpr, OUT_G: tl.constexpr,
    SLICES: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """lhs is the output's gradient, rhs the input. Rows are filters, columns taps and channels; k covers pixels.

    With SLICES > 1, each program sums up a slice of the pixels and writes to its own copy of the result. If FLAT,
    both tensors have the same pixels at the same distances, so no pixel's row and column are needed for them.
    """
    pixels: tl.constexpr = IMAGES * OH * OW
    reduced: tl.constexpr = R * S * CHANNELS
    tiles_m: tl.constexpr = (FILTERS + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (reduced + TILE_N - 1) // TILE_N
    length: tl.constexpr = (pixels + SLICES * TILE_K - 1) // (SLICES * TILE_K) * TILE_K
    is_whole: tl.constexpr = length * SLICES == pixels
    result_size: tl.constexpr = GROUPS * FILTERS * reduced

    # The tiles of a slice, which read the same pixels, run at the same time.
    part = tl.program_id(0) // (tiles_m * tiles_n)
    group, piece = part % GROUPS, part // GROUPS
    row, column = grouped(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    f = row * TILE_M + tl.arange(0, TILE_M)
    n = column * TILE_N + tl.arange(0, TILE_N)
    tap, c = n // CHANNELS, n % CHANNELS
    shift_h = tap // S * STEP_H + SHIFT_H
    shift_w = tap % S * STEP_W + SHIFT_W
    lhs += group * (FILTERS * LHS_F)
    rhs += group * (CHANNELS * RHS_C)
    column_at = shift_h * RHS_H + shift_w * RHS_W + c * RHS_C
    known_f, known_n = f[None, :] < FILTERS, n[None, :] < reduced
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    for start in range(0, length, TILE_K):
        p = piece * length + start + tl.arange(0, TILE_K)
        image, oy, ox = p // (OH * OW), p // OW % OH, p % OW
        if FLAT:
            left_at, right_at = p * LHS_W, p * RHS_W
        else:
            left_at = image * LHS_N + oy * LHS_H + ox * LHS_W
            right_at = image * RHS_N + oy * (STRIDE_H * RHS_H) + ox * (STRIDE_W * RHS_W)
        left_at = lhs + left_at[:, None] + f[None, :] * LHS_F
        right_at = rhs + right_at[:, None] + column_at[None, :]
        known_p = p[:, None] < pixels
        gradient = _loaded(left_at, known_p & known_f, is_whole and FILTERS % TILE_M == 0)
        window = _gradient_window(
            right_at, oy, ox, shift_h, shift_w, known_p, known_n, H, W, STRIDE_H, STRIDE_W, BOUNDED,
            is_whole and reduced % TILE_N == 0,
        )  # fmt: skip
        sums = multiplied(gradient.trans(1, 0), window, sums, ACCUMULATOR, PRECISION)
    at = tap // S * OUT_H + tap % S * OUT_W + c * OUT_C + piece * result_size + group * OUT_G
    at = f[:, None] * OUT_F + at[None, :]
    tl.store(result + at, sums.to(result.dtype.element_ty), mask=(f[:, None] < FILTERS) & known_n)
