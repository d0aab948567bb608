"""The parts of an execution that a time includes. Times are comparable as far as they include the same parts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Included(str, Enum):
    """A part of an execution that its time may include."""

    #: Every kernel (dispatch) of one execution.
    KERNELS = "kernels"
    #: The fills and copies between them, such as the zeros around a padded image.
    FILLS_AND_COPIES = "fills and copies"
    #: Converting the layout or type of a filter or weight, as an argument requires in every execution. A
    #: constant can be converted once, beforehand.
    WEIGHT_CONVERSION = "weight conversion"
    #: The host's part of a call: arguments, launch, waiting, memory for results and intermediate values.
    CALL = "call"


def included(*, weights: bool, call: bool) -> tuple[Included, ...]:
    """Kernels, fills and copies; the conversion of weights and the call as requested."""
    optional = ((Included.WEIGHT_CONVERSION, weights), (Included.CALL, call))
    return Included.KERNELS, Included.FILLS_AND_COPIES, *(part for part, is_in in optional if is_in)


def included_text(parts: Sequence[Included]) -> str:
    """`kernels; fills and copies; call`; empty if unknown."""
    return "; ".join(part.value for part in parts)


def differences(base: Sequence[Included], new: Sequence[Included]) -> list[str]:
    """`only new includes call`. A side without parts does not state what its time includes."""
    if not base or not new:
        sides = [name for name, parts in (("base", base), ("new", new)) if not parts]
        return [f"{sides[0]} does not state what its time includes"] if len(sides) == 1 else []
    found = (
        (side, [part for part in one if part not in other])
        for side, one, other in (("base", base, new), ("new", new, base))
    )
    return [
        f"only {side} includes {' and '.join(part.value for part in parts)}" for side, parts in found if parts
    ]
