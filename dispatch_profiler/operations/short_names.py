"""Operations as people name them, for views and tables. Different operations may have the same short name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dispatch_profiler.operations._base import Operation
from dispatch_profiler.operations.geometry import AttentionGeometry, ConvolutionGeometry, ProductGeometry

#: What people call a step `scale_shift`: it comes from the batch norms of models.
_BATCH_NORM = "bn"
#: Stands for what is left out, and the shortest end of a path that still says something.
_CUT, _LEAST_PATH = "...", 5
#: The modules at the end of a label.
_MODULES = re.compile(r"\s*\([^()]*\)\s*$")
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


def label(operation: Operation, modules: Sequence[str] = (), width: int | None = None) -> str:
    """The short name, with the first of the modules of a model that compute the operation.

    `conv 3x3 256->256 14x14 s1 (layer3.1.conv2)`, of several modules `... (layer3.1.conv2 +3 more)`. With a `width`, the
    path loses its beginning first, then all of it, and at last the short name its end.
    """
    name = short_name(operation)
    if not modules:
        return name if width is None else _cut(name, width)
    more = f" +{len(modules) - 1} more" if len(modules) > 1 else ""
    left = None if width is None else width - len(name) - len(f" ({more})")
    path = modules[0]
    if left is not None and len(path) > left:
        kept = left - len(_CUT)
        if kept < _LEAST_PATH:
            return _cut(name, width)
        path = f"{_CUT}{_end(path, kept)}"
    return f"{name} ({path}{more})"


def _end(path: str, most: int) -> str:
    """The last names in a path, of `most` characters together; if they say too little, the end of the path."""
    end = path[-most:]
    names = end if path[-most - 1] == "." else end.partition(".")[2]
    return names if len(names) >= _LEAST_PATH else end


def _cut(name: str, width: int | None) -> str:
    return name if width is None or len(name) <= width else f"{name[: width - len(_CUT)]}{_CUT}"


def without_modules(name: str) -> str:
    """The short name in a `label`, with single blanks."""
    return " ".join(_MODULES.sub("", name).split())


def _extents(operation: Operation) -> Iterator[str]:
    convolution, product, rows = operation.convolution, operation.product, operation.row_sums
    attention = operation.attention
    if convolution is not None:
        yield from _of_convolution(convolution)
    elif product is not None:
        yield from _of_product(operation.kind, product)
    elif attention is not None:
        yield from _of_attention(attention)
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


def _of_attention(attention: AttentionGeometry) -> Iterator[str]:
    yield f"attention {attention.batch}x{attention.heads} {attention.queries}x{attention.keys}"
    size, value_size = attention.size, attention.value_size
    yield f"d{size}" if size == value_size else f"d{size}->{value_size}"
    if attention.shared > 1:
        yield f"g{attention.key_heads}"
    if attention.causal:
        yield "causal" if attention.causal == "upper_left" else "causal from the end"
    if attention.window:
        yield f"window {attention.window}"
    if attention.mask:
        yield "mask"


def _joined(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))


def _once(values: Sequence[int]) -> str:
    """One value if all are equal: `2` or `1x2`."""
    return str(values[0]) if len(set(values)) == 1 else _joined(values)


def _epilogue(operation: Operation) -> str:
    contraction = operation.contraction
    if contraction is None or contraction.epilogue.is_empty:
        return ""
    return " +" + str(contraction.epilogue).replace("+", " ").replace("scale_shift", _BATCH_NORM)
