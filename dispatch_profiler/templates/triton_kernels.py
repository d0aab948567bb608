"""Triton kernels of batched matrix products, with epilogues.

Only the `compiler` package imports the files of kernels, because they need Triton. Shapes, strides and tiles
are compile-time constants, so one source serves every layout and is compiled once for each dispatch. A slice
of a split reduction is an element of the batch: only the strides differ.

    result[b, m, n] = epilogue(sum_k lhs[b, m, k] * rhs[b, k, n])

With JOINED slices, `partial` has the sums of each slice of each tile, and `arrivals` counts, for each tile,
the workgroups that wrote their slice. With SWAPPED, a tile is computed as the transpose of rhs^T x lhs^T,
because `wgmma` has at least 64 rows, but as few as 8 columns.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from dispatch_profiler.templates.triton_common import finish, grouped, masked, multiplied


@triton.jit
def _position(tile, M: tl.constexpr, N: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
              GROUP: tl.constexpr, JOINED: tl.constexpr):  # fmt: skip
    """Batch or slice, first row and first column of tile number `tile`; joined slices of a tile are consecutive."""
    tiles_m: tl.constexpr = (M + TILE_M - 1) // TILE_M
    tiles_n: tl.constexpr = (N + TILE_N - 1) // TILE_N
    if JOINED > 1:
        batch, within = tile % JOINED, tile // JOINED
    else:
        batch, within = tile // (tiles_m * tiles_n), tile % (tiles_m * tiles_n)
    row, column = grouped(within, tiles_m, tiles_n, GROUP)
    return batch, row * TILE_M, column * TILE_N


@triton.jit
def _arrive(counter, JOINED: tl.constexpr):
    """Count this workgroup, and wait until all JOINED workgroups of its tile have been counted.

    Every launch adds JOINED to the counter, so it is never reset.
    """
    tl.debug_barrier()
    count = tl.atomic_add(counter, 1, sem="acq_rel") + 1
    # The difference is right even if the count overflows, because JOINED is a power of two.
    complete = ((count - 1) & -JOINED) + JOINED
    while count - complete < 0:
        count = tl.atomic_add(counter, 0, sem="acquire")


@triton.jit
def _joined(sums, partial, counter, piece, JOINED: tl.constexpr):
    """Rows of the sum of a tile's slices, added in their order; each workgroup of the tile adds other rows."""
    tile_m: tl.constexpr = sums.shape[0]
    tile_n: tl.constexpr = sums.shape[1]
    rows: tl.constexpr = tile_m // JOINED
    at = tl.arange(0, tile_m)[:, None] * tile_n + tl.arange(0, tile_n)[None, :]
    tl.store(partial + piece * (tile_m * tile_n) + at, sums)
    _arrive(counter, JOINED)
    at = (tl.arange(0, rows) + piece * rows)[:, None] * tile_n + tl.arange(0, tile_n)[None, :]
    total = tl.zeros((rows, tile_n), sums.dtype)
    for other in tl.static_range(JOINED):
        total += tl.load(partial + other * (tile_m * tile_n) + at, cache_modifier=".cg")
    return total


@triton.jit
def _finish(
    sums, operands, result, partial, arrivals, tile, batch, m, n, M: tl.constexpr, N: tl.constexpr,
    STEPS: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """Joins slices, computes the epilogue, and stores the tile whose first element is m, n."""
    columns: tl.constexpr = sums.shape[1]
    rows: tl.constexpr = sums.shape[0] // JOINED
    if JOINED > 1:
        whole = tile // JOINED
        partial += whole * (JOINED * sums.shape[0] * columns)
        sums = _joined(sums, partial, arrivals + whole, batch, JOINED)
        m += batch * rows
        batch = 0
    m = m + tl.arange(0, rows)
    n = n + tl.arange(0, columns)
    row = batch * M + m[:, None]
    stored = (m[:, None] < M) & (n[None, :] < N)
    finish(sums, operands, result, row * N + n[None, :], stored, row, n, n < N, STEPS)


@triton.jit
def _added(x, y, sums, ACCUMULATOR: tl.constexpr, PRECISION: tl.constexpr, SWAPPED: tl.constexpr):
    """sums + x @ y, or its transpose."""
    if SWAPPED:
        sums = multiplied(y.T, x.T, sums, ACCUMULATOR, PRECISION)
    else:
        sums = multiplied(x, y, sums, ACCUMULATOR, PRECISION)
    return sums


@triton.jit
def product(
    lhs, rhs, operands, result, partial, arrivals,
    BATCH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    LHS_BATCH: tl.constexpr, LHS_M: tl.constexpr, LHS_K: tl.constexpr,
    RHS_BATCH: tl.constexpr, RHS_K: tl.constexpr, RHS_N: tl.constexpr,
    ACCUMULATOR: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr, JOINED: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    """One program per tile, or PERSISTENT programs that loop over the tiles."""
    tiles: tl.constexpr = BATCH * ((M + TILE_M - 1) // TILE_M) * ((N + TILE_N - 1) // TILE_N)
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    for tile in range(tl.program_id(0), tiles, step):
        batch, at_m, at_n = _position(tile, M, N, TILE_M, TILE_N, GROUP, JOINED)
        m = at_m + tl.arange(0, TILE_M)
        n = at_n + tl.arange(0, TILE_N)
        k = tl.arange(0, TILE_K)
        x_at = lhs + batch * LHS_BATCH + m[:, None] * LHS_M + k[None, :] * LHS_K
        y_at = rhs + batch * RHS_BATCH + k[:, None] * RHS_K + n[None, :] * RHS_N
        sums = tl.zeros((TILE_N, TILE_M) if SWAPPED else (TILE_M, TILE_N), ACCUMULATOR)
        for start in range(0, K, TILE_K):
            x = masked(x_at, m[:, None] < M, start + k[None, :] < K, M % TILE_M == 0, K % TILE_K == 0)
            y = masked(y_at, start + k[:, None] < K, n[None, :] < N, K % TILE_K == 0, N % TILE_N == 0)
            sums = _added(x, y, sums, ACCUMULATOR, PRECISION, SWAPPED)
            x_at += TILE_K * LHS_K
            y_at += TILE_K * RHS_K
        if SWAPPED:
            sums = sums.T
        _finish(
            sums, operands, result, partial, arrivals, tile, batch, at_m, at_n, M, N, STEPS, JOINED
        )  # fmt: skip


@triton.jit
def _matrix(
    at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A descriptor of a matrix, or of its transpose if its columns are contiguous."""
    if STEP == 1:
        made = tl.make_tensor_descriptor(at, [ROWS, COLUMNS], [STRIDE, 1], [TILE_ROWS, TILE_COLUMNS])
    else:
        made = tl.make_tensor_descriptor(at, [COLUMNS, ROWS], [STEP, 1], [TILE_COLUMNS, TILE_ROWS])
    return made


@triton.jit
def _matrices(
    at, BATCH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DISTANCE: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A descriptor of a batch of matrices, or of their transposes if their columns are contiguous."""
    if STEP == 1:
        made = tl.make_tensor_descriptor(
            at, [BATCH, ROWS, COLUMNS], [DISTANCE, STRIDE, 1], [1, TILE_ROWS, TILE_COLUMNS]
        )
    else:
        made = tl.make_tensor_descriptor(
            at, [BATCH, COLUMNS, ROWS], [DISTANCE, STEP, 1], [1, TILE_COLUMNS, TILE_ROWS]
        )
    return made


@triton.jit
def _block(
    tiles, batch, row, column, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, IN_ROWS: tl.constexpr
):
    """A block of one matrix of a batch."""
    if IN_ROWS:
        loaded = tiles.load([batch, row, column]).reshape([TILE_ROWS, TILE_COLUMNS])
    else:
        loaded = tiles.load([batch, column, row]).reshape([TILE_COLUMNS, TILE_ROWS]).T
    return loaded


@triton.jit
def product_by_descriptors(
    lhs, rhs, operands, result, partial, arrivals,
    BATCH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    LHS_BATCH: tl.constexpr, LHS_M: tl.constexpr, LHS_K: tl.constexpr,
    RHS_BATCH: tl.constexpr, RHS_K: tl.constexpr, RHS_N: tl.constexpr,
    ACCUMULATOR: tl.constexpr, STEPS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr, JOINED: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    """`product` with operands that the bulk copy engine (TMA) loads.

    Every program creates its descriptors in the global scratch memory of the launch.
    """
    tiles: tl.constexpr = BATCH * ((M + TILE_M - 1) // TILE_M) * ((N + TILE_N - 1) // TILE_N)
    step: tl.constexpr = PERSISTENT if PERSISTENT else tiles
    lhs_rows: tl.constexpr = LHS_K == 1
    rhs_rows: tl.constexpr = RHS_N == 1
    # Slices of k are columns and rows of the same matrices.
    flat: tl.constexpr = LHS_BATCH == K * LHS_K and RHS_BATCH == K * RHS_K and K % TILE_K == 0
    if flat or BATCH == 1:
        x_tiles = _matrix(lhs, M, K * BATCH, LHS_M, LHS_K, TILE_M, TILE_K)
        y_tiles = _matrix(rhs, K * BATCH, N, RHS_K, RHS_N, TILE_K, TILE_N)
    else:
        x_tiles = _matrices(lhs, BATCH, M, K, LHS_BATCH, LHS_M, LHS_K, TILE_M, TILE_K)
        y_tiles = _matrices(rhs, BATCH, K, N, RHS_BATCH, RHS_K, RHS_N, TILE_K, TILE_N)
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=PERSISTENT > 0):
        batch, at_m, at_n = _position(tile, M, N, TILE_M, TILE_N, GROUP, JOINED)
        sums = tl.zeros((TILE_N, TILE_M) if SWAPPED else (TILE_M, TILE_N), ACCUMULATOR)
        for start in range(0, K, TILE_K):
            if flat or BATCH == 1:
                at_k = batch * K + start
                x = x_tiles.load([at_m, at_k]) if lhs_rows else x_tiles.load([at_k, at_m]).T
                y = y_tiles.load([at_k, at_n]) if rhs_rows else y_tiles.load([at_n, at_k]).T
            else:
                x = _block(x_tiles, batch, at_m, start, TILE_M, TILE_K, lhs_rows)
                y = _block(y_tiles, batch, start, at_n, TILE_K, TILE_N, rhs_rows)
            sums = _added(x, y, sums, ACCUMULATOR, PRECISION, SWAPPED)
        if SWAPPED:
            sums = sums.T
        _finish(
            sums, operands, result, partial, arrivals, tile, batch, at_m, at_n, M, N, STEPS, JOINED
        )  # fmt: skip
