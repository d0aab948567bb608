"""Transposed convolutions, as the input_backward of the convolution from their output to their input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations.convolution.layouts import SPATIAL, TAPS


def mirrored(
    kind: str, rank: int, fields: Mapping[str, Any], output_padding: Sequence[int]
) -> dict[str, Any]:
    """Fields of the mirrored convolution, from the fields of a transposed convolution.

    Its input's size is the transposed convolution's output size,
    `(input - 1) * stride - padding + window + output_padding` (as torch's ConvTranspose2d defines it), and its
    channels and filters are exchanged. Every tuple of `fields` has `rank` entries. Raises OperationError.
    """
    ones = (1,) * rank
    stride, dilation = fields.get("stride", ones), fields.get("dilation", ones)
    before = fields.get("padding", (0,) * rank)
    after = list(fields.get("padding_after") or before)
    size = {}
    for i, (axis, taps) in enumerate(zip(SPATIAL[rank], TAPS[rank], strict=True)):
        extra = output_padding[i]
        _check_output_padding(axis, extra, stride[i], dilation[i])
        window = (fields[taps] - 1) * dilation[i] + 1
        size[axis] = (fields[axis] - 1) * stride[i] - before[i] - after[i] + window + extra
        # Otherwise, the mirrored convolution's output would have more pixels than the transposed convolution's input.
        surplus = extra // stride[i] * stride[i]
        if surplus > after[i]:
            raise OperationError(
                f"{kind}: an output padding of {extra} along {axis} with stride {stride[i]} needs a padding of "
                f"at least {surplus} on the high side, but got {after[i]}",
                hint="use a smaller output padding",
            )
        after[i] -= surplus
    if min(size.values()) < 1:
        got = ", ".join(f"{axis}={value}" for axis, value in size.items())
        raise OperationError(
            f"{kind}: the output of a transposed convolution needs at least 1 pixel, but has {got}",
            hint="use less padding, or a larger input or filter",
        )
    exchanged = {"c": fields["k"], "k": fields["c"]}
    return {**fields, **size, **exchanged, "padding_after": tuple(after), "mode": "input_backward"}


def _check_output_padding(axis: str, extra: int, stride: int, dilation: int) -> None:
    if not 0 <= extra < max(stride, dilation):
        raise OperationError(
            f"output padding must be at least 0 and below stride or dilation, but got {extra} along {axis} with "
            f"stride {stride} and dilation {dilation}",
            hint="use a smaller output padding",
        )
