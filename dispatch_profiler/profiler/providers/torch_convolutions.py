"""Convolutions by torch, in any rank, layout and mode. It allocates their results.

`api` is the module torch, which only `torch_library` imports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_profiler.operations import CONV_ROLES, Contraction, ConvolutionGeometry
from dispatch_profiler.profiler.providers._base import NotSupported
from dispatch_profiler.profiler.providers.torch_steps import (
    apply_steps,
    epilogue_steps,
    in_order,
    torch_order,
)

Tensor = Any


def convolution_handles(
    api: Any, convolution: ConvolutionGeometry, lhs: Tensor, rhs: Tensor
) -> tuple[Tensor, Tensor]:
    """Views of the operands in torch's order of axes; a filter is stored as torch users choose."""
    roles = CONV_ROLES[convolution.mode]
    left, right = (in_order(convolution, role, each) for role, each in zip(roles, (lhs, rhs), strict=False))
    if roles[1] == "filter":
        right = right.contiguous(memory_format=_memory_format(api, convolution))
    return left, right


def _memory_format(api: Any, convolution: ConvolutionGeometry) -> Any:
    """The memory format of tensors with channels last, for the ranks for which torch has one."""
    named = {2: api.channels_last, 3: api.channels_last_3d} if convolution.is_channels_last else {}
    return named.get(convolution.spatial_rank, api.contiguous_format)


def convolution_computation(
    api: Any,
    operation: Contraction,
    device: Any,
    types: dict[str, Any],
    forward: Callable[[Any, ConvolutionGeometry, bool], Callable[..., Tensor]] | None = None,
) -> Callable[..., Tensor]:
    """The computation of a convolution on the handles of `convolution_handles`. Raises NotSupported.

    `forward` makes the computation of a forward convolution, by default with `torch.conv2d` and its variants
    for other ranks; its last argument is whether it adds a bias.
    """
    convolution, of = operation.convolution, operation.types
    assert convolution is not None
    narrow = of.input.precision < of.accumulator.precision
    if of.input.is_integer or of.input.name == "f8E4M3FN" or (narrow and of.lhs != of.result):
        raise NotSupported(f"torch has no convolution of {of.lhs} with a result in {of.result}")
    if (
        narrow
        and convolution.batch > 1
        and convolution.mode == "weight_backward"
        and str(device).startswith("cpu")
        and not sums_images_wide(api, of.lhs)
    ):
        raise NotSupported(f"torch sums gradients of weights over images in {of.lhs} on this CPU")
    role = CONV_ROLES[convolution.mode][2]
    stored, order = types[of.result], torch_order(convolution, role)
    places = [order.index(letter) for letter in convolution.layout_of(role)]
    fuses = convolution.mode == "forward" and operation.epilogue.starts_with_bias
    steps = epilogue_steps(api, operation, without_first=fuses)
    if convolution.mode == "forward":
        sums = (forward or forward_sums)(api, convolution, fuses)
    else:
        sums = gradient_sums(api, convolution, {"dtype": types[of.lhs], "device": device})

    def compute(lhs: Tensor, rhs: Tensor, *rest: Tensor) -> Tensor:
        found = sums(lhs, rhs, rest)
        apply_steps(steps, found, rest)
        return found.to(stored).permute(places).contiguous()

    return compute


def sums_images_wide(api: Any, type_: str) -> bool:
    """Whether oneDNN computes convolutions of a narrow type on this CPU.

    Without it, torch adds the gradients of each image to those of the images before it in the narrow type.
    """
    supported = {"f16": "_is_mkldnn_fp16_supported", "bf16": "_is_mkldnn_bf16_supported"}
    if type_ not in supported or not api.backends.mkldnn.is_available():
        return False
    return bool(getattr(api.ops.mkldnn, supported[type_])())


class Padding:
    """The padding of a convolution as torch does it: `on_both` sides alike, the rest as a copy with zeros."""

    def __init__(self, api: Any, convolution: ConvolutionGeometry) -> None:
        pairs = list(zip(convolution.padding, convolution.padding_after, strict=True))
        self.on_both = tuple(map(min, pairs))
        self._margins = [(low - min(low, high), high - min(low, high)) for low, high in pairs]
        self._pad = api.nn.functional.pad
        self._size = convolution.size

    @property
    def size(self) -> list[int]:
        """Size of the copy."""
        return [n + low + high for n, (low, high) in zip(self._size, self._margins, strict=True)]

    def copied(self, images: Tensor) -> Tensor:
        """The padded copy; the images themselves without padding."""
        # torch takes the margins of the last axis first.
        margins = [each for pair in reversed(self._margins) for each in pair]
        return self._pad(images, margins) if any(margins) else images

    def inside(self, padded: Tensor) -> Tensor:
        """The part of a padded copy inside the margins."""
        for axis, ((low, _), size) in enumerate(zip(self._margins, self._size, strict=True), start=2):
            padded = padded.narrow(axis, low, size)
        return padded


def forward_sums(api: Any, convolution: ConvolutionGeometry, fuses: bool) -> Callable[..., Tensor]:
    """A function of (images, filters, rest) in torch's order of axes; `fuses` adds `rest[0]`, the bias."""
    function, padding = f"conv{convolution.spatial_rank}d", Padding(api, convolution)
    window = (convolution.stride, padding.on_both, convolution.dilation, convolution.groups)

    def compute(images: Tensor, filters: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        return getattr(api, function)(padding.copied(images), filters, rest[0] if fuses else None, *window)

    return compute


def gradient_sums(
    api: Any, convolution: ConvolutionGeometry, options: dict[str, Any]
) -> Callable[..., Tensor]:
    """A function of (gradient, filters or images, rest) in torch's order of axes; it ignores `rest`.

    torch's `convolution_backward` takes input and filter, but reads only one of them. `options` are the
    options of torch's tensors.
    """
    backward, padding = api.ops.aten.convolution_backward.default, Padding(api, convolution)
    zeros = (0,) * convolution.spatial_rank
    rest = (
        None, convolution.stride, padding.on_both, convolution.dilation, False, zeros, convolution.groups
    )  # fmt: skip
    is_input = convolution.mode == "input_backward"
    images = (convolution.batch, convolution.channels, *padding.size)
    filters = (convolution.filters, convolution.channels_per_group, *convolution.filter_size)
    layout = _memory_format(api, convolution)
    unread = api.empty(images if is_input else filters, memory_format=layout, **options)

    def input_gradient(gradient: Tensor, filters: Tensor, _: tuple[Tensor, ...]) -> Tensor:
        return padding.inside(backward(gradient, unread, filters, *rest, (True, False, False))[0])

    def weight_gradient(gradient: Tensor, images: Tensor, _: tuple[Tensor, ...]) -> Tensor:
        return backward(gradient, padding.copied(images), unread, *rest, (False, True, False))[1]

    return input_gradient if is_input else weight_gradient
