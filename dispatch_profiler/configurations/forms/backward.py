"""The phases of a gradient along one spatial axis of a strided convolution, alone and in groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """Pixels `start`, `start + stride`, ... of the input: a convolution with stride 1 of the output's gradient.

    `taps` are the taps of the filter that reach these pixels, in ascending order; the convolution reads them in
    descending order. `padding` is (low, high); a negative amount removes pixels.
    """

    start: int
    extent: int
    taps: tuple[int, ...]
    dilation: int
    padding: tuple[int, int]


def phases_along(size: int, output: int, taps: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """The phases along an axis with `size` input and `output` output pixels; without phases whose pixels are zero.

    Output pixel y reads input pixel y * stride + tap * dilation - padding. So input pixel x = start + t *
    stride takes from output pixel t + (start + padding - tap * dilation) / stride, for the taps for which
    this is a whole number:

        stride 2, padding 1, three taps:  even pixels take tap 1, odd ones taps 0 and 2
    """
    phases = []
    for start in range(min(stride, size)):
        reaching = [tap for tap in range(taps) if (start + padding - tap * dilation) % stride == 0]
        if not reaching:
            continue
        extent = -((start - size) // stride)
        first = (start + padding - reaching[-1] * dilation) // stride
        last = (start + padding - reaching[0] * dilation) // stride
        if first >= output or last + extent <= 0:
            continue
        step = (last - first) // (len(reaching) - 1) if len(reaching) > 1 else 1
        high = extent - 1 + last - (output - 1)
        phases.append(Phase(start, extent, tuple(reaching), step, (-first, high)))
    return phases


@dataclass(frozen=True)
class PhaseGroup:
    """Phases `start`, `start + 1`, ..., `count` of them, that `taps` taps of the filter reach: one in each stride."""

    start: int
    count: int
    taps: int


def phase_groups(taps: int, stride: int) -> list[PhaseGroup]:
    """Phases by the number of taps, at most two groups; without phases that no tap reaches.

    stride 3, four taps:  phase 0 takes taps 0 and 3; phases 1 and 2 take taps 1 and 2
    """
    whole, more = divmod(taps, stride)
    groups = (PhaseGroup(0, more, whole + 1), PhaseGroup(more, stride - more, whole))
    return [each for each in groups if each.count and each.taps]
