"""The axes of the search space of Triton's tiles."""

from __future__ import annotations

from dispatch_profiler.configurations.space import Axis, powers_of_two, slices_of, tile_axes
from dispatch_profiler.configurations.triton.convolutions import is_weight_gradient, product_of
from dispatch_profiler.configurations.triton.windows import window_invalid_reason
from dispatch_profiler.operations import Operation

#: How f32 is multiplied: in f32, on tensor cores in products of parts of 11 or 8 bits, or rounded to 11 bits.
PRECISIONS = ("ieee", "tf32x3", "bf16x6", "tf32")
#: Slices of the pixels for a weight gradient, whose result is small: at most one for each multiprocessor.
_WEIGHT_SLICES = (1, 2, 3, 4, 7, 8, 14, 16, 28, 32, 49, 64, 98)
#: Slices for the other modes, whose tiles are too few for the multiprocessors if images are small.
_CONVOLUTION_SLICES = (1, 2, 3, 4, 6, 8)


def triton_axes(operation: Operation, capability: int) -> tuple[Axis, ...]:
    """An axis for each field of `TritonTiles`, and three for its tile; `capability` is 90 for sm_90."""
    tiles = {"m": powers_of_two(16, 256), "n": powers_of_two(16, 256), "k": powers_of_two(16, 256)}
    product, convolution, is_weight = (
        product_of(operation),
        operation.convolution,
        is_weight_gradient(operation),
    )
    has_windows = product is None and convolution is not None and window_invalid_reason(convolution) is None
    can_describe = capability >= 90 and (product is not None or has_windows)
    return (
        Axis("warps", (4, 8)),
        Axis("stages", (2, 3, 4, 5, 6, 7, 8)),
        Axis("group", (1, 4, 8)),
        Axis("persistent", (0,) if product is None and is_weight else (0, 132, 264)),
        Axis("descriptors", (False, True) if can_describe else (False,)),
        Axis("precision", PRECISIONS[:3] if operation.element_type.name == "f32" else PRECISIONS[:1]),
        Axis("l1", (False, True) if product is None else (False,)),
        Axis("split_k", _slices_of(operation)),
        Axis("joined", (False, True) if product is not None and not product.is_batched else (False,)),
        Axis("swapped", (False, True) if product is not None else (False,)),
        Axis("windows_only", (False, True) if can_describe and has_windows and not is_weight else (False,)),
        *tile_axes("tile", tiles),
    )


def _slices_of(operation: Operation) -> tuple[int, ...]:
    if operation.convolution is None:
        return slices_of(operation)
    return _WEIGHT_SLICES if is_weight_gradient(operation) else _CONVOLUTION_SLICES
