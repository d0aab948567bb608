"""What convolutions of any rank, layout and mode mean: every product, and the elements that it links."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Convolution

Index = tuple[int, ...]
#: Letters of a convolution's spatial axes and of its filter's extents along them.
SPATIAL = {Conv1d: ("w", "s"), Conv2d: ("hw", "rs"), Conv3d: ("dhw", "trs")}
#: Mode -> what lhs, rhs and the result of a convolution are.
ROLES = {
    "forward": ("input", "filter", "output"),
    "input_backward": ("output", "filter", "input"),
    "weight_backward": ("output", "input", "filter"),
}


def conv_layout(op: Convolution, role: str) -> str:
    """Letters of the input, filter or output in the order in which they are stored."""
    axes = SPATIAL[type(op)][0]
    if "_" in op.layout:
        return dict(zip(ROLES["forward"], op.layout.split("_"), strict=True))[role]
    last = op.layout.endswith("c")
    if role == "filter":
        return f"{axes}cf" if last else f"fc{axes}"
    return f"n{axes}c" if last else f"nc{axes}"


def _along_axes(op: Convolution) -> Iterator[tuple[str, int, int, int, int, int, int]]:
    """Letter, size, taps, stride, dilation, and padding before and after, of each spatial axis."""
    axes, taps = SPATIAL[type(op)]
    after = op.padding if op.padding_after is None else op.padding_after
    for i, (axis, tap) in enumerate(zip(axes, taps, strict=True)):
        yield axis, getattr(op, axis), getattr(op, tap), op.stride[i], op.dilation[i], op.padding[i], after[i]


def extents_of(op: Convolution, role: str) -> dict[str, int]:
    """Letter -> extent of the input, filter or output."""
    if role == "filter":
        return {"f": op.k, "c": op.c // op.groups, **{axis: taps for axis, _, taps, *_ in _along_axes(op)}}
    if role == "input":
        return {"n": op.n, "c": op.c, **{axis: size for axis, size, *_ in _along_axes(op)}}
    sizes = {
        axis: len(starts(size + before + after, (taps - 1) * step + 1, stride))
        for axis, size, taps, stride, step, before, after in _along_axes(op)
    }
    return {"n": op.n, "c": op.k, **sizes}


def conv_terms(op: Convolution) -> Iterator[dict[str, Index]]:
    """Every product of the forward convolution: the elements of input, filter and output that it links.

    The gradients of input and filter are sums over the same links.
    """
    letters = {role: conv_layout(op, role) for role in ROLES["forward"]}
    channels, filters = op.c // op.groups, op.k // op.groups
    pixels = []
    for axis, size, taps, stride, step, before, after in _along_axes(op):
        places = starts(size + before + after, (taps - 1) * step + 1, stride)
        links = (
            (out, tap, start + tap * step - before) for out, start in enumerate(places) for tap in range(taps)
        )
        pixels.append([(axis, out, tap, pixel) for out, tap, pixel in links if 0 <= pixel < size])
    for n, g, c, f in itertools.product(range(op.n), range(op.groups), range(channels), range(filters)):
        for along in itertools.product(*pixels):
            at = {
                "input": {"n": n, "c": g * channels + c, **{axis: pixel for axis, _, _, pixel in along}},
                "filter": {"f": g * filters + f, "c": c, **{axis: tap for axis, _, tap, _ in along}},
                "output": {"n": n, "c": g * filters + f, **{axis: out for axis, out, _, _ in along}},
            }
            yield {role: tuple(at[role][letter] for letter in letters[role]) for role in letters}


@st.composite
def layouts(draw: st.DrawFn, axes: str) -> str:
    """Input, filter and output in any order of their letters; as often in the usual order."""
    first, last = (f"nc{axes}", f"fc{axes}", f"nc{axes}"), (f"n{axes}c", f"{axes}cf", f"n{axes}c")
    if draw(st.booleans()):
        return "_".join(draw(st.sampled_from((first, last))))
    return "_".join("".join(draw(st.permutations(letters))) for letters in first)


def starts(size: int, window: int, stride: int) -> range:
    """Where a window of `window` stands in `size` padded pixels."""
    return range(0, size - window + 1, stride)
