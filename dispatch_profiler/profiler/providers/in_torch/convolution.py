"""Convolutions in torch, in any rank, layout and mode. It allocates their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dispatch_profiler.operations import CONV_ROLES, Contraction, ConvolutionGeometry, Operation
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    apply_steps,
    dtype_of,
    epilogue_operands,
    epilogue_steps,
    in_order,
    torch_order,
    with_at_most_a_bias,
)


class TorchConvolution(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return kind

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """See `TorchFamily.handles`: views in torch's order of axes; a filter is stored as torch users choose."""
        contraction, convolution = operation.as_contraction(), operation.convolution
        assert convolution is not None
        lhs, rhs, *rest, result = tensors
        roles = CONV_ROLES[convolution.mode]
        left, right = in_order(convolution, roles[0], lhs), in_order(convolution, roles[1], rhs)
        if roles[1] == "filter":
            right = right.contiguous(memory_format=_memory_format(api, convolution))
        fuses = convolution.mode == "forward" and contraction.epilogue.starts_with_bias
        return (left, right, *epilogue_operands(api, contraction, rest, fuses=fuses), result)

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        return convolution_computation(api, operation.as_contraction(), device)

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`: the result has the operation's layout, which torch often has chosen itself."""
        contraction, convolution = with_at_most_a_bias(operation), operation.convolution
        assert convolution is not None
        lhs_role, rhs_role, _ = CONV_ROLES[convolution.mode]
        fuses = convolution.mode == "forward" and contraction.epilogue.starts_with_bias
        sums = _sums(api, contraction, device, fuses)
        channels = (-1, *[1] * convolution.spatial_rank)
        places = _places(convolution)

        def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            lhs, rhs, *bias = tensors
            views = in_order(convolution, lhs_role, lhs), in_order(convolution, rhs_role, rhs)
            return (*views, *(each if fuses else each.view(channels) for each in bias))

        def compute(lhs: Tensor, rhs: Tensor, *bias: Tensor) -> Tensor:
            found = sums(lhs, rhs, bias)
            return found.add_(bias[0]) if bias and not fuses else found

        return TorchFunction(enter, compute, lambda result: (result.permute(places).contiguous(),))

    def converts_weights_ahead(self, operation: Operation, device: Any) -> bool:
        """See `Library.converts_weights_ahead`: filters."""
        return operation.reads_weight


def _sums(api: Any, contraction: Contraction, device: Any, fuses: bool) -> Callable[..., Tensor]:
    """A function of (lhs, rhs, rest) in torch's order of axes, in the mode of the convolution."""
    convolution = contraction.convolution
    assert convolution is not None
    if convolution.mode == "forward":
        return _forward_sums(api, convolution, fuses)
    return _gradient_sums(api, convolution, {"dtype": dtype_of(api, contraction.types.lhs), "device": device})


def _places(convolution: ConvolutionGeometry) -> list[int]:
    """The axes of a result in torch's order, in the order of the operation's layout."""
    role = CONV_ROLES[convolution.mode][2]
    order = torch_order(convolution, role)
    return [order.index(letter) for letter in convolution.layout_of(role)]


def _memory_format(api: Any, convolution: ConvolutionGeometry) -> Any:
    """The memory format of tensors with channels last, for the ranks for which torch has one."""
    named = {2: api.channels_last, 3: api.channels_last_3d} if convolution.is_channels_last else {}
    return named.get(convolution.spatial_rank, api.contiguous_format)


def convolution_computation(
    api: Any,
    operation: Contraction,
    device: Any,
    forward: Callable[[Any, ConvolutionGeometry, bool], Callable[..., Tensor]] | None = None,
) -> Callable[..., Tensor]:
    """The computation of a convolution on the handles of its family. Raises NotSupported.

    `forward` makes the computation of a forward convolution, by default with `torch.conv2d` and its variants
    for other ranks; its last argument is whether it adds a bias.
    """
    convolution, of = operation.convolution, operation.types
    assert convolution is not None
    narrow = of.input.precision < of.accumulator.precision
    if of.input.is_integer or of.input.is_f8 or (narrow and of.lhs != of.result):
        raise NotSupported(f"torch has no convolution of {of.lhs} with a result in {of.result}")
    if (
        narrow
        and convolution.batch > 1
        and convolution.mode == "weight_backward"
        and str(device).startswith("cpu")
        and not sums_images_wide(api, of.lhs)
    ):
        raise NotSupported(f"torch sums gradients of weights over images in {of.lhs} on this CPU")
    stored, places = dtype_of(api, of.result), _places(convolution)
    fuses = convolution.mode == "forward" and operation.epilogue.starts_with_bias
    steps = epilogue_steps(api, operation, without_first=fuses)
    if forward is not None and convolution.mode == "forward":
        sums = forward(api, convolution, fuses)
    else:
        sums = _sums(api, operation, device, fuses)

    def compute(lhs: Tensor, rhs: Tensor, *rest: Tensor) -> Tensor:
        found = sums(lhs, rhs, rest)
        apply_steps(steps, found, rest)
        return found.to(stored).permute(places).contiguous()

    return compute


def sums_images_wide(api: Any, type_: str) -> bool:
    """Whether oneDNN computes convolutions of a narrow type on this CPU.

    Without it, torch adds up the gradients of the images in the narrow type.
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


def _forward_sums(api: Any, convolution: ConvolutionGeometry, fuses: bool) -> Callable[..., Tensor]:
    """A function of (images, filters, rest) in torch's order of axes; `fuses` adds `rest[0]`, the bias."""
    function, padding = f"conv{convolution.spatial_rank}d", Padding(api, convolution)
    window = (convolution.stride, padding.on_both, convolution.dilation, convolution.groups)

    def compute(images: Tensor, filters: Tensor, rest: tuple[Tensor, ...]) -> Tensor:
        return getattr(api, function)(padding.copied(images), filters, rest[0] if fuses else None, *window)

    return compute


def _gradient_sums(
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


FAMILY = TorchConvolution()
