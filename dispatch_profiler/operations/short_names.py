"""Operations as people name them, for views and tables. Different operations may have the same short name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dispatch_profiler.operations._base import Operation
from dispatch_profiler.operations.geometry import ConvolutionGeometry, ProductGeometry

#: The type of operands that is not mentioned.
_USUAL = "f32"
_OF_MODES = {
    "forward": "",
    "input_backward": "input gradient of ",
    "weight_backward": "weight gradient of ",
    "bias_backward": "bias gradient of ",
}


def short_name(operation: Operation) -> str:
    """`conv 3x3 256->256 14x14 s1 +residual relu`, `matmul 128x768x3072 bf16 +bias gelu`, `layer_norm 6272x144`.

    A convolution has its taps, channels, filters and image, a product m x n x k, a norm its rows and their size.
    """
    extents = " ".join(_extents(operation))
    kind = operation.element_type.name
    typed = "" if kind == _USUAL else f" {kind}"
    return f"{extents}{typed}{_epilogue(operation)}"


def _extents(operation: Operation) -> Iterator[str]:
    convolution, product, rows = operation.convolution, operation.product, operation.row_sums
    if convolution is not None:
        yield from _of_convolution(convolution)
    elif product is not None:
        yield from _of_product(operation.kind, product)
    elif rows is not None:
        yield f"{operation.kind} {rows.rows}x{rows.size}"
    else:
        yield operation.name


def _of_convolution(geometry: ConvolutionGeometry) -> Iterator[str]:
    rank = "" if geometry.spatial_rank == 2 else f"{geometry.spatial_rank}d"
    is_depthwise = geometry.groups == geometry.channels == geometry.filters > 1
    yield f"{_OF_MODES[geometry.mode]}{'depthwise ' if is_depthwise else ''}conv{rank}"
    yield _joined(geometry.filter_size)
    yield f"{geometry.channels}" if is_depthwise else f"{geometry.channels}->{geometry.filters}"
    yield _joined(geometry.size)
    yield f"s{_once(geometry.stride)}"
    if _once(geometry.dilation) != "1":
        yield f"d{_once(geometry.dilation)}"
    if geometry.groups > 1 and not is_depthwise:
        yield f"g{geometry.groups}"
    if geometry.batch > 1:
        yield f"n{geometry.batch}"


def _of_product(kind: str, product: ProductGeometry) -> Iterator[str]:
    yield kind
    if product.is_batched:
        yield f"{product.batch} x"
    yield _joined((product.m, product.n, product.k))


def _joined(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))


def _once(values: Sequence[int]) -> str:
    """One value if all are equal: `2` or `1x2`."""
    return str(values[0]) if len(set(values)) == 1 else _joined(values)


def _epilogue(operation: Operation) -> str:
    contraction = operation.contraction
    if contraction is None or contraction.epilogue.is_empty:
        return ""
    return " +" + str(contraction.epilogue).replace("+", " ")
