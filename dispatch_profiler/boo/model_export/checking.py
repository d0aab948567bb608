"""Compares the results of a package with eager torch in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch

from dispatch_profiler.boo.fusion.model_runs import unchanged

_torch: Any = torch
_trees: Any = torch.utils._pytree
#: The error of a package may be this many times the error of eager torch, whose kernels add in another order.
_TIMES = 10.0
#: And at least this many roundings of the largest element: an error of eager torch may be small by chance.
_ROUNDINGS = 100.0


def difference(
    package: Callable[..., Any], model: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]
) -> str:
    """Why the results of `package` on `arguments` are not the model's; empty if only rounding differs.

    Both errors are the distances from eager torch in float64, or if the model does not run in float64, from eager torch.
    """
    with _torch.no_grad(), unchanged(model, arguments):
        found = _trees.tree_leaves(_called(package, arguments))
        eager = _trees.tree_leaves(_called(model, arguments))
        exact = _in_float64(model, arguments) or eager
    if len(found) != len(eager):
        return f"{len(found)} results instead of {len(eager)}"
    # Packages return numbers as tensors.
    every = zip(found, eager, exact, strict=True)
    tensors = [each for each in every if isinstance(each[1], torch.Tensor)]
    return next(filter(None, (_deviation(*each) for each in tensors)), "")


def _called(function: Callable[..., Any], arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    positional, named = arguments
    return function(*positional, **named)


def _in_float64(model: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any] | None:
    """The results of eager torch in float64; None if the model does not run in it."""

    def widened(tensor: Any) -> Any:
        return tensor.double() if tensor.is_floating_point() else tensor

    try:
        exact = copy.deepcopy(model).double()
        leaves: list[Any] = _trees.tree_leaves(
            _called(exact, _trees.tree_map_only(torch.Tensor, widened, arguments))
        )
        return leaves
    except Exception:  # whatever a model raises whose code names a type
        return None


def _deviation(found: Any, eager: Any, exact: Any) -> str:
    """Why a tensor is not the expected one; empty if it is."""
    if found.shape != eager.shape or found.dtype != eager.dtype:
        return f"a result is {found.dtype} {tuple(found.shape)}, not {eager.dtype} {tuple(eager.shape)}"
    if not eager.is_floating_point():
        return "" if _torch.equal(found, eager) else "a result has other whole numbers or truth values"
    is_finite = eager.isfinite() & exact.isfinite()
    if not _torch.equal(found[~is_finite].nan_to_num(), eager[~is_finite].nan_to_num()):
        return "a result is infinite or NaN elsewhere"
    if not is_finite.any():
        return ""
    error, usual = (_distance(each[is_finite], exact[is_finite]) for each in (found, eager))
    largest = float(exact[is_finite].abs().max())
    limit = max(_TIMES * usual, _ROUNDINGS * _torch.finfo(eager.dtype).eps * largest)
    if error <= limit:
        return ""
    return (
        f"an error of {error:.2g}, where eager torch has {usual:.2g} and the largest element is {largest:.2g}"
    )


def _distance(one: Any, other: Any) -> float:
    distances = (one.double() - other.double()).abs()
    return float(distances.nan_to_num(nan=math.inf, posinf=math.inf).max())
