"""Triton kernels of convolutions whose windows the bulk copy engine (TMA) loads.

A tile's pixels are a box of images, rows and columns. A tap moves the box; what lies outside an image
arrives as zero, so neither pointers nor masks are computed. Channels are contiguous, strides are 1, and there is
one group. For names and formulas see `triton_convolutions`.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from dispatch_profiler.templates.triton_common import finish, grouped, masked, multiplied


@triton.jit
def _first_pixel(
    box, H: tl.constexpr, W: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
):  # fmt: skip
    """First image, row and column of box number `box`."""
    boxes_h: tl.constexpr = (H + BOX_H - 1) // BOX_H
    boxes_w: tl.constexpr = (W + BOX_W - 1) // BOX_W
    image = box // (boxes_h * boxes_w)
    return image * BOX_N, box // boxes_w % boxes_h * BOX_H, box % boxes_w * BOX_W


@triton.jit
def _filters(
    rhs, R: tl.constexpr, S: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr,
    RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """A descriptor of all filters, whose channels or numbers are contiguous."""
    if RHS_C == 1:
        made = tl.make_tensor_descriptor(
            rhs, [R, S, FILTERS, CHANNELS], [RHS_H, RHS_W, RHS_F, 1], [1, 1, TILE_N, TILE_K]
        )
    else:
        made = tl.make_tensor_descriptor(
            rhs, [R, S, CHANNELS, FILTERS], [RHS_H, RHS_W, RHS_C, 1], [1, 1, TILE_K, TILE_N]
        )
    return made


@triton.jit
def _filters_at(
    at, n, c, CHANNELS: tl.constexpr, FILTERS: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Filters n of a tap from channel c on, through pointers: filters x channels."""
    fits_n: tl.constexpr = FILTERS % TILE_N == 0
    fits_k: tl.constexpr = CHANNELS % TILE_K == 0
    k = tl.arange(0, TILE_K)
    if RHS_C == 1:
        at = at + n[:, None] * RHS_F + k[None, :]
        weights = masked(at, n[:, None] < FILTERS, c + k[None, :] < CHANNELS, fits_n, fits_k)
    else:
        at = at + k[:, None] * RHS_C + n[None, :]
        weights = masked(at, c + k[:, None] < CHANNELS, n[None, :] < FILTERS, fits_k, fits_n).T
    return weights


@triton.jit
def _store(
    sums, operands, result, piece, image, top, left, n,
    IMAGES: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, FILTERS: tl.constexpr,
    OUT_N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_F: tl.constexpr,
    BOX_H: tl.constexpr, BOX_W: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute the epilogue, and store the pixels of a box that are inside the image, in the copy of the result for
    slice `piece`.
    """
    pixel = tl.arange(0, sums.shape[0])
    image += pixel // (BOX_H * BOX_W)
    y = top + pixel // BOX_W % BOX_H
    x = left + pixel % BOX_W
    at = (image * OUT_N + y * OUT_H + x * OUT_W)[:, None] + n[None, :] * OUT_F
    at += piece * (IMAGES * OH * OW * FILTERS)
    stored = (image < IMAGES) & (y < OH) & (x < OW)
    finish(sums, operands, result, at, stored[:, None] & (n[None, :] < FILTERS), at, n, n < FILTERS, STEPS)


@triton.jit
def convolution_by_descriptors(
    lhs, rhs, operands, result,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr,
    LHS_N: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr,
    RHS_H: tl.constexpr, RHS_W: tl.constexpr, RHS_C: tl.constexpr, RHS_F: tl.constexpr,
    OUT_N: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_F: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, SLICES: tl.constexpr,
    ACCUMULATOR: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr, WINDOWS_ONLY: tl.constexpr,
):  # fmt: skip
    """`convolution` with boxes of BOX_N x BOX_H x BOX_W = TILE_M pixels.

    If WINDOWS_ONLY, filters come through pointers, and no program has to create a descriptor for them.
    """
    boxes_h: tl.constexpr = (OH + BOX_H - 1) // BOX_H
    boxes_w: tl.constexpr = (OW + BOX_W - 1) // BOX_W
    tiles_m: tl.constexpr = (IMAGES + BOX_N - 1) // BOX_N * boxes_h * boxes_w
    tiles_n: tl.constexpr = (FILTERS + TILE_N - 1) // TILE_N
    tiles: tl.constexpr = SLICES * tiles_m * tiles_n
    steps: tl.constexpr = R * S * ((CHANNELS + TILE_K - 1) // TILE_K)
    length: tl.constexpr = (steps + SLICES - 1) // SLICES
    source = tl.make_tensor_descriptor(
        lhs, [IMAGES, H, W, CHANNELS], [LHS_N, LHS_H, LHS_W, 1], [BOX_N, BOX_H, BOX_W, TILE_K]
    )
    if not WINDOWS_ONLY:
        filters = _filters(rhs, R, S, CHANNELS, FILTERS, RHS_H, RHS_W, RHS_C, RHS_F, TILE_N, TILE_K)
    programs: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    for tile in range(tl.program_id(0), tiles, programs):
        piece = tile // (tiles_m * tiles_n)
        row, column = grouped(tile % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
        image, top, left = _first_pixel(row, OH, OW, BOX_N, BOX_H, BOX_W)
        f = column * TILE_N
        n = f + tl.arange(0, TILE_N)
        sums = tl.zeros((TILE_N, TILE_M), ACCUMULATOR)
        for step in range(piece * length, min(steps, (piece + 1) * length)):
            # All taps of some channels follow each other: their windows overlap, so they are found in L2.
            tap, c = step % (R * S), step // (R * S) * TILE_K
            i, j = tap // S, tap % S
            window = source.load([image, top + i * STEP_H + SHIFT_H, left + j * STEP_W + SHIFT_W, c])
            if WINDOWS_ONLY:
                weights = _filters_at(
                    rhs + (i * RHS_H + j * RHS_W + c * RHS_C), n, c, CHANNELS, FILTERS, RHS_C, RHS_F, TILE_N, TILE_K
                )  # fmt: skip
            elif RHS_C == 1:
                weights = filters.load([i, j, f, c]).reshape([TILE_N, TILE_K])
            else:
                weights = filters.load([i, j, c, f]).reshape([TILE_K, TILE_N]).T
            # Filters are the left operand: wgmma reads a reshaped left operand from registers.
            sums = multiplied(weights, window.reshape([TILE_M, TILE_K]).T, sums, ACCUMULATOR, PRECISION)
        _store(
            sums.T, operands, result, piece, image, top, left, n,
            IMAGES, OH, OW, FILTERS, OUT_N, OUT_H, OUT_W, OUT_F, BOX_H, BOX_W, STEPS,
        )  # fmt: skip


@triton.jit
def weight_gradient_by_descriptors(
    lhs, rhs, result,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    IMAGES: tl.constexpr, CHANNELS: tl.constexpr, FILTERS: tl.constexpr,
    LHS_N: tl.constexpr, LHS_H: tl.constexpr, LHS_W: tl.constexpr, LHS_F: tl.constexpr,
    RHS_N: tl.constexpr, RHS_H: tl.constexpr, RHS_W: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT_C: tl.constexpr, OUT_F: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, SLICES: tl.constexpr,
    ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`weight_gradient` with boxes of BOX_N x BOX_H x BOX_W = TILE_K pixels; the columns of a tile share a tap."""
    boxes_h: tl.constexpr = (OH + BOX_H - 1) // BOX_H
    boxes_w: tl.constexpr = (OW + BOX_W - 1) // BOX_W
    boxes: tl.constexpr = (IMAGES + BOX_N - 1) // BOX_N * boxes_h * boxes_w
    length: tl.constexpr = (boxes + SLICES - 1) // SLICES
    tiles_m: tl.constexpr = (FILTERS + TILE_M - 1) // TILE_M
    parts: tl.constexpr = (CHANNELS + TILE_N - 1) // TILE_N
    tiles_n: tl.constexpr = R * S * parts
    boxes_fit: tl.constexpr = IMAGES % BOX_N == 0 and OH % BOX_H == 0 and OW % BOX_W == 0
    source = tl.make_tensor_descriptor(
        rhs, [IMAGES, H, W, CHANNELS], [RHS_N, RHS_H, RHS_W, 1], [BOX_N, BOX_H, BOX_W, TILE_N]
    )
    piece = tl.program_id(0) // (tiles_m * tiles_n)
    row, column = grouped(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP)
    tap, c = column // parts, column % parts * TILE_N
    i, j = tap // S, tap % S
    shift_h, shift_w = i * STEP_H + SHIFT_H, j * STEP_W + SHIFT_W
    pixel = tl.arange(0, TILE_K)
    pixel_n, pixel_h, pixel_w = pixel // (BOX_H * BOX_W), pixel // BOX_W % BOX_H, pixel % BOX_W
    f = row * TILE_M + tl.arange(0, TILE_M)
    n = c + tl.arange(0, TILE_N)
    pixel_at = (pixel_n * LHS_N + pixel_h * LHS_H + pixel_w * LHS_W)[:, None] + f[None, :] * LHS_F
    sums = tl.zeros((TILE_M, TILE_N), ACCUMULATOR)
    for box in range(piece * length, min(boxes, (piece + 1) * length)):
        image, top, left = _first_pixel(box, OH, OW, BOX_N, BOX_H, BOX_W)
        at = lhs + pixel_at + (image * LHS_N + top * LHS_H + left * LHS_W)
        inside = (image + pixel_n < IMAGES) & (top + pixel_h < OH) & (left + pixel_w < OW)
        gradient = masked(at, inside[:, None], f[None, :] < FILTERS, boxes_fit, FILTERS % TILE_M == 0)
        window = source.load([image, top + shift_h, left + shift_w, c]).reshape([TILE_K, TILE_N])
        # wgmma reads a reshaped left operand from registers, so the gradient comes through pointers.
        sums = multiplied(gradient.T, window, sums, ACCUMULATOR, PRECISION)
    at = i * OUT_H + j * OUT_W + piece * (FILTERS * R * S * CHANNELS)
    at = at + f[:, None] * OUT_F + n[None, :] * OUT_C
    known = (f[:, None] < FILTERS) & (n[None, :] < CHANNELS)
    tl.store(result + at, sums.to(result.dtype.element_ty), mask=known)
