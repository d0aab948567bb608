"""Triton kernels of attention: a tile of queries goes through the keys, with a running maximum and a running sum.

Scores are multiplied by log2(e), so that exponentials are powers of 2. The axes of tensors are batch, head, position and
element, whose distances are 1.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl

from dispatch_profiler.templates.triton_common import masked


@triton.jit
def _tile(
    tensor, first, KEYS: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr,
    COLUMNS: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    """The tile of keys or values from position `first` on, with zeros outside; INSIDE: all positions are inside."""
    k, d = first + tl.arange(0, TILE), tl.arange(0, COLUMNS)
    at = tensor + k[:, None] * STRIDE + d[None, :]
    return masked(at, k[:, None] < KEYS, d[None, :] < SIZE, INSIDE, SIZE == COLUMNS)


@triton.jit
def _step(
    state, x, tensors, first, q, known,
    KEYS: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    SHIFT: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, MASK_Q: tl.constexpr, KEY_S: tl.constexpr,
    VALUE_S: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
    VALUE_COLUMNS: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """`state`, sums, total and maximum, with the keys from `first` on; SEEN: all queries see all of them, but for a mask."""
    sums, total, largest = state
    key, value, mask = tensors
    inside: tl.constexpr = SEEN or KEYS % TILE == 0
    y = _tile(key, first, KEYS, SIZE, KEY_S, TILE, COLUMNS, inside)
    scores = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    factor: tl.constexpr = SCALE * 1.4426950408889634
    k = first + tl.arange(0, TILE)
    if MASK == "add":
        at = mask + q[:, None] * MASK_Q + k[None, :]
        added = tl.load(at, mask=known[:, None] & (k[None, :] < KEYS), other=0.0)
        scores = scores * factor + added.to(tl.float32) * 1.4426950408889634
    elif MASK == "bool":
        at = mask + q[:, None] * MASK_Q + k[None, :]
        shown = tl.load(at, mask=known[:, None] & (k[None, :] < KEYS), other=0)
        scores = tl.where(shown != 0, scores, float("-inf"))
    rest: tl.constexpr = 1.0 if MASK == "add" else factor
    if not SEEN:
        seen = k[None, :] < KEYS
        if CAUSAL:
            seen = seen & (k[None, :] <= q[:, None] + SHIFT)
        if WINDOW:
            seen = seen & (k[None, :] > q[:, None] + SHIFT - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(largest, tl.max(scores, 1) * rest)
    base = highest
    if MASK != "" or not SEEN:
        base = tl.where(highest == float("-inf"), 0.0, highest)
    powers = tl.exp2(scores * rest - base[:, None])
    shrink = tl.exp2(largest - base)
    z = _tile(value, first, KEYS, VALUE_SIZE, VALUE_S, TILE, VALUE_COLUMNS, inside)
    total = total * shrink + tl.sum(powers, 1)
    sums = tl.dot(powers.to(z.dtype), z, sums * shrink[:, None], input_precision=PRECISION)
    return sums, total, highest


@triton.jit
def attention(
    query, key, value, mask, result, logsumexp,
    BATCH: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, SHARED: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr, SHIFT: tl.constexpr,
    WINDOW: tl.constexpr, MASK: tl.constexpr, LOGARITHMS: tl.constexpr,
    QUERY_B: tl.constexpr, QUERY_H: tl.constexpr, QUERY_S: tl.constexpr,
    KEY_B: tl.constexpr, KEY_H: tl.constexpr, KEY_S: tl.constexpr,
    VALUE_B: tl.constexpr, VALUE_H: tl.constexpr, VALUE_S: tl.constexpr,
    RESULT_B: tl.constexpr, RESULT_H: tl.constexpr, RESULT_S: tl.constexpr,
    MASK_B: tl.constexpr, MASK_H: tl.constexpr, MASK_Q: tl.constexpr,
    MERGED: tl.constexpr, PARTS: tl.constexpr, LENGTH: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr, ACCUMULATOR: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, COLUMNS: tl.constexpr, VALUE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each program computes TILE_M rows, queries of MERGED heads that share their keys, for one of PARTS parts of the keys.

    GROUP units, heads or MERGED heads, are computed together, so that their keys stay in L2; of causal attention, tiles
    with the most keys come first. A part has LENGTH keys; its result and the logarithms of its sums, to base 2, are parts
    of `result` and `logsumexp`.
    """
    all_units: tl.constexpr = BATCH * HEADS // MERGED
    rows: tl.constexpr = MERGED * QUERIES
    tiles: tl.constexpr = (rows + TILE_M - 1) // TILE_M
    program = tl.program_id(0)
    part, program = program % PARTS, program // PARTS
    group = program // (GROUP * tiles)
    units = min(GROUP, all_units - group * GROUP)
    within = program % (GROUP * tiles)
    tile, unit = within // units, group * GROUP + within % units
    if CAUSAL:
        tile = tiles - 1 - tile
    batch, first_head = unit // (HEADS // MERGED), unit % (HEADS // MERGED) * MERGED
    key_head = first_head // SHARED
    row = tile * TILE_M + tl.arange(0, TILE_M)
    known = row < rows
    head, q = first_head + row // QUERIES, row % QUERIES
    first_query, last_query = 0, QUERIES - 1
    if MERGED == 1:
        head, q = first_head + row * 0, row
        first_query, last_query = tile * TILE_M, min(tile * TILE_M + TILE_M, QUERIES) - 1
    d, e = tl.arange(0, COLUMNS), tl.arange(0, VALUE_COLUMNS)
    x = masked(
        query + batch * QUERY_B + head[:, None] * QUERY_H + q[:, None] * QUERY_S + d[None, :],
        known[:, None], d[None, :] < SIZE, rows % TILE_M == 0, SIZE == COLUMNS,
    )  # fmt: skip

    # The keys that any query of the tile sees, and in between, those that all of them see.
    begin, end = part * LENGTH, min(part * LENGTH + LENGTH, KEYS)
    inner_begin, inner_end = begin, end // TILE_N * TILE_N
    if CAUSAL:
        end = min(end, last_query + SHIFT + 1)
        inner_end = min(inner_end, (first_query + SHIFT + 1) // TILE_N * TILE_N)
    if WINDOW:
        begin = max(begin, (first_query + SHIFT - WINDOW + 1) // TILE_N * TILE_N)
        inner_begin = max(begin, (last_query + SHIFT - WINDOW + TILE_N) // TILE_N * TILE_N)
        inner_begin = min(inner_begin, (end + TILE_N - 1) // TILE_N * TILE_N)
    inner_end = max(inner_begin, inner_end)

    masks = query  # a tuple has no None
    if MASK != "":
        masks = mask + batch * MASK_B + head[:, None] * MASK_H
    keys, values = key + batch * KEY_B + key_head * KEY_H, value + batch * VALUE_B + key_head * VALUE_H
    tensors = (keys, values, masks)
    sums = tl.zeros((TILE_M, VALUE_COLUMNS), ACCUMULATOR)
    total = tl.zeros((TILE_M,), ACCUMULATOR)
    largest = tl.full((TILE_M,), float("-inf"), ACCUMULATOR)
    if WINDOW:
        for first in range(begin, inner_begin, TILE_N):
            sums, total, largest = _step(
                (sums, total, largest), x, tensors, first, q, known, KEYS, SIZE, VALUE_SIZE, SCALE, CAUSAL, SHIFT,
                WINDOW, MASK, MASK_Q, KEY_S, VALUE_S, PRECISION, TILE_N, COLUMNS, VALUE_COLUMNS, False,
            )  # fmt: skip
    for first in range(inner_begin, inner_end, TILE_N):
        sums, total, largest = _step(
            (sums, total, largest), x, tensors, first, q, known, KEYS, SIZE, VALUE_SIZE, SCALE, CAUSAL, SHIFT,
            WINDOW, MASK, MASK_Q, KEY_S, VALUE_S, PRECISION, TILE_N, COLUMNS, VALUE_COLUMNS, True,
        )  # fmt: skip
    if CAUSAL or KEYS % TILE_N != 0:
        for first in range(inner_end, end, TILE_N):
            sums, total, largest = _step(
                (sums, total, largest), x, tensors, first, q, known, KEYS, SIZE, VALUE_SIZE, SCALE, CAUSAL, SHIFT,
                WINDOW, MASK, MASK_Q, KEY_S, VALUE_S, PRECISION, TILE_N, COLUMNS, VALUE_COLUMNS, False,
            )  # fmt: skip
    divisor = tl.where(total == 0.0, 1.0, total)
    results = sums / divisor[:, None]
    at = batch * RESULT_B + head * RESULT_H + q * RESULT_S
    at_sum = batch * HEADS * QUERIES + head * QUERIES + q
    if PARTS > 1:
        count: tl.constexpr = BATCH * HEADS * QUERIES
        at, at_sum = at + part * count * VALUE_SIZE, at_sum + part * count
    stored = known[:, None] & (e[None, :] < VALUE_SIZE)
    tl.store(result + at[:, None] + e[None, :], results.to(result.dtype.element_ty), mask=stored)
    if LOGARITHMS:
        # Of no keys, log2(0) is minus infinity.
        logarithms = tl.where(total == 0.0, float("-inf"), largest + tl.log2(divisor))
        if PARTS == 1:
            logarithms *= 0.6931471805599453
        tl.store(logsumexp + at_sum, logarithms, mask=known)


@triton.jit
def attention_of_parts(
    partial, logarithms, result, logsumexp,
    COUNT: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr, VALUE_SIZE: tl.constexpr, PARTS: tl.constexpr,
    RESULT_B: tl.constexpr, RESULT_H: tl.constexpr, RESULT_S: tl.constexpr, LOGARITHMS: tl.constexpr,
    ACCUMULATOR: tl.constexpr, ROWS: tl.constexpr, VALUE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each program joins the PARTS results of one of COUNT queries. ROWS is the power of two that holds all parts."""
    row = tl.program_id(0)
    batch, head, q = row // (HEADS * QUERIES), row // QUERIES % HEADS, row % QUERIES
    p, e = tl.arange(0, ROWS), tl.arange(0, VALUE_COLUMNS)
    weights = tl.load(logarithms + p * COUNT + row, mask=p < PARTS, other=float("-inf"))
    of_parts = tl.load(
        partial + (p[:, None] * COUNT + row) * VALUE_SIZE + e[None, :],
        mask=(p[:, None] < PARTS) & (e[None, :] < VALUE_SIZE), other=0.0,
    )  # fmt: skip
    largest = tl.max(weights, 0)
    powers = tl.exp2(weights - tl.where(largest == float("-inf"), 0.0, largest)).to(ACCUMULATOR)
    total = tl.sum(powers, 0)
    divisor = tl.where(total == 0.0, 1.0, total)
    found = tl.sum(of_parts * powers[:, None], 0) / divisor
    at = batch * RESULT_B + head * RESULT_H + q * RESULT_S
    tl.store(result + at + e, found.to(result.dtype.element_ty), mask=e < VALUE_SIZE)
    if LOGARITHMS:
        logarithm = tl.where(total == 0.0, float("-inf"), largest + tl.log2(divisor))
        tl.store(logsumexp + row, logarithm * 0.6931471805599453)
