"""Split reductions: a product's reduction is cut into slices, which are computed in parallel and then added up."""

from __future__ import annotations

from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Loop, Operation


def check_split(split_k: int) -> None:
    """Raise ConfigurationError unless `split_k` is an int of at least 1."""
    if type(split_k) is not int or split_k < 1:
        raise ConfigurationError(f"split_k must be a whole number of at least 1, but got {split_k!r}")


def split_suffix(split_k: int) -> str:
    """The suffix of a configuration's name for a split reduction: `_splitk4`, or empty."""
    return f"_splitk{split_k}" if split_k > 1 else ""


def split_loops(operation: Operation, split_k: int) -> tuple[Loop, ...]:
    """Loops of `operation` with its reduction split into `split_k` parallel slices.

    split_k=4:  m, n, k=128  ->  split=4, m, n, k=32
    """
    if split_k == 1:
        return operation.loops
    cut = (
        Loop(loop.name, loop.extent // split_k, loop.iterator) if loop.iterator == "reduction" else loop
        for loop in operation.loops
    )
    return (Loop("split", split_k, "parallel"), *cut)


def split_invalid_reason(operation: Operation, split_k: int) -> str | None:
    """Why `operation` cannot be split; only a plain matmul can, into slices of equal length."""
    if split_k == 1:
        return None
    if operation.product is None or operation.product.is_batched:
        return f"split-k is defined for matmul, not for {operation.kind}"
    if operation.accumulations % split_k:
        return f"{split_k} slices do not divide k={operation.accumulations}"
    return None
