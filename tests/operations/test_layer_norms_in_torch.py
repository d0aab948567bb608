"""Random layer norms of every kind against torch in float64, which has formulas of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dispatch_profiler.operations import (
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Operation,
)
from dispatch_profiler.operations.reductions import TYPES

torch: Any = pytest.importorskip("torch")
SEED = 24
AFFINE = {
    LayerNorm: (True, False, "weight", "bias"),
    LayerNormInputBackward: (True, False),
    LayerNormWeightBackward: (True, "weight"),
}
KINDS = tuple(AFFINE)
#: Operands that a forward layer norm reads, rather than statistics of its rows.
GIVEN = ("x", "dy", "weight", "bias")


def random_operation(rng: np.random.Generator, kind: type[Operation], type_: str) -> Operation:
    """Up to 9 rows of up to 40 elements; eps, and with or without parameters, where the kind has them."""
    shape = {"rows": int(rng.integers(1, 10)), "size": int(rng.integers(1, 41)), "type": type_}
    given = AFFINE[kind]
    affine = {"affine": given[rng.integers(len(given))]}
    eps = {"eps": float(rng.choice([1e-8, 1e-6, 1e-5, 1e-3, 0.5]))} if kind is LayerNorm else {}
    return kind(**shape, **affine, **eps)


def random_operands(rng: np.random.Generator, operation: Operation) -> dict[str, np.ndarray]:
    """Rows at any place and of any scale; mean and rstd are those of x, rounded to their type."""
    drawn = {
        tensor.name: rng.uniform(-1, 1, tensor.shape).astype(tensor.type.dtype)
        for tensor in operation.operands
        if tensor.name in GIVEN
    }
    scale, place = rng.choice([0.1, 1.0, 30.0]), rng.uniform(-3, 3, (operation.rows, 1))
    drawn["x"] = (drawn["x"].astype(np.float64) * scale + place).astype(drawn["x"].dtype)
    if operation.kind != LayerNorm.kind:
        x = drawn["x"].astype(np.float64)
        statistics = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + rng.choice([1e-5, 1e-3]))
        types = (tensor.type.dtype for tensor in operation.operands[2:4])
        drawn |= dict(zip(("mean", "rstd"), map(np.ndarray.astype, statistics, types), strict=True))
    return {tensor.name: drawn[tensor.name] for tensor in operation.operands}


def in_torch(operation: Operation, operands: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """Every result by torch's kernels for float64."""
    given = {name: torch.from_numpy(array.astype(np.float64)) for name, array in operands.items()}
    shape = (operation.size,)
    if operation.kind == LayerNorm.kind:
        results = torch.native_layer_norm(
            given["x"], shape, given.get("weight"), given.get("bias"), operation.eps
        )
    else:
        by_input = operation.kind == LayerNormInputBackward.kind
        wants = (by_input, not by_input, not by_input and operation.affine is True)
        ones = torch.ones(shape, dtype=torch.float64)
        results = torch.ops.aten.native_layer_norm_backward(
            given["dy"], given["x"], shape, given["mean"][:, None], given["rstd"][:, None],
            given.get("weight", ones), ones, wants,
        )  # fmt: skip
    return [each.numpy() for each in results if each is not None]


def disagreement(
    operation: Operation, operands: dict[str, np.ndarray], theirs: Sequence[np.ndarray]
) -> float:
    """The largest distance between a reference and torch's result, relative to the bound of a kernel in float64.

    The bound is that of the same operation in f64, for a library that may cancel terms.
    """
    wide = replace(operation, type="f64").reference(
        [array.astype(np.float64) for array in operands.values()], stepwise=True
    )
    found = operation.reference(list(operands.values()))
    worst = 0.0
    for ours, bounded, expected in zip(found, wide, theirs, strict=True):
        values = expected.reshape(ours.expected.shape)
        assert bounded.tolerance.max() < 1e-9 * max(1.0, np.abs(values).max()), operation.name
        worst = max(worst, float((np.abs(ours.expected - values) / bounded.tolerance).max()))
    return worst


def test_200_random_layer_norms_agree_with_torch():
    """All three kinds, every type, with and without parameters; operands are widened to float64 for torch."""
    print(f"seeds ({SEED}, 0) to ({SEED}, 199)")
    seen = set()
    for seed in range(200):
        rng = np.random.default_rng((SEED, seed))
        operation = random_operation(rng, KINDS[seed % 3], TYPES[seed // 3 % len(TYPES)])
        operands = random_operands(rng, operation)
        found = disagreement(operation, operands, in_torch(operation, operands))
        assert found <= 1.0, f"seed {(SEED, seed)}: {operation.name} differs by {found} times the bound"
        seen.add((operation.kind, operation.type, operation.affine))
    assert len(seen) == len(TYPES) * (4 + 2 + 2)


@pytest.mark.parametrize("planted", ["eps", "affine", "mean", "rows"])
def test_another_layer_norm_does_not_agree(planted):
    """The check above can fail."""
    rng = np.random.default_rng(SEED)
    operation, other = {
        "eps": (LayerNorm(4, 8, "f64", 1e-5), LayerNorm(4, 8, "f64", 1e-4)),
        "affine": (LayerNormInputBackward(4, 8, "f64"), LayerNormInputBackward(4, 8, "f64", False)),
    }.get(planted, 2 * (LayerNormWeightBackward(4, 8, "f64"),))
    operands = random_operands(rng, operation)
    changed = dict(operands)
    if planted == "mean":
        changed["mean"] = operands["mean"] + 1e-6
    if planted == "rows":
        changed["dy"] = operands["dy"][::-1].copy()
    used = {name: changed[name] for name in (tensor.name for tensor in other.operands)}
    assert disagreement(operation, operands, in_torch(other, used)) > 1.0
