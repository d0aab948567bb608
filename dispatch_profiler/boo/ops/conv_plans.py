"""How a convolution of given tensors is computed: by a kernel, with what has to be permuted first, or by torch.

A plan is made once for tensors of the same shapes, strides, types and devices, and kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional

from dispatch_profiler.boo.environment import LOGGER, launch_settings, settings_state
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.op_exports import Mode
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.boo.ops.kernel_plans import (
    FrozenKernelPlan,
    KernelPlan,
    KernelView,
    kernel_view,
    weight_view,
)
from dispatch_profiler.boo.ops.layouts import (
    CHANNELS_FIRST,
    layout_of,
    result_layout,
    strides_of,
    to_memory,
    to_torch,
)
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import DispatchProfilerError, OperationError

_log = logging.getLogger(LOGGER)
_aten: Any = torch.ops.aten

#: By the number of spatial axes.
TORCH_FUNCTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
#: Types that kernels compute with.
KERNEL_TYPES = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
#: Plans that are kept: more than the layers of some models, each with several batch sizes.
_LIMIT = 4096
#: Extents up to this one do not overflow the kernels' index arithmetic.
_MOST_ELEMENTS = 2**31 - 1


class ConvOptions(NamedTuple):
    """Options of a convolution, as `torch.ops.aten.convolution` takes them, and the result's layout.

    Without a layout, the result has torch's.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_layout: str | None = None


#: The tensors of a convolution, or of a gradient -> result
Plan = Callable[..., Tensor]
_plans: dict[Any, Plan] = SESSION.keep("convolutions", {})


class Forward(NamedTuple):
    """`compute(Forward(), options, x, w, b)`: the result, with torch's axes.

    `frozen`: weight and bias are snapshots. For calls without gradients.
    """

    frozen: bool = False

    def by_torch(self, options: ConvOptions, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """torch's own result."""
        stride, padding, dilation, groups, _ = options
        return TORCH_FUNCTIONS[w.dim() - 2](x, w, b, stride, padding, dilation, groups)

    def shapes(self, x: Tensor, w: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Shapes of input and weight."""
        return x.shape, w.shape

    def plan(self, options: ConvOptions, x: Tensor, w: Tensor, b: Tensor | None) -> Plan:
        """The plan for a launch. Raises OperationError."""
        layout = options.output_layout or result_layout(x, w)
        plan = KernelPlan(*_forward(options, x, w, b, layout), to_torch(layout), x, b)
        return FrozenKernelPlan(plan) if self.frozen else plan


class ForwardInLayouts(NamedTuple):
    """`compute(ForwardInLayouts(...), options, x, w, b)`: the result, of tensors with axes in these layouts.

    For calls without gradients. The options have no layout of their own.
    """

    x: str
    w: str
    y: str
    frozen: bool = False

    def by_torch(self, options: ConvOptions, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        """torch's own result."""
        x, w = x.permute(to_torch(self.x)), w.permute(to_torch(self.w))
        return Forward().by_torch(options, x, w, b).permute(to_memory(self.y)).contiguous()

    def shapes(self, x: Tensor, w: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Shapes of input and weight."""
        return x.permute(to_torch(self.x)).shape, w.permute(to_torch(self.w)).shape

    def plan(self, options: ConvOptions, x: Tensor, w: Tensor, b: Tensor | None) -> Plan:
        """The plan for a launch. Raises OperationError."""
        of_x, of_w = to_torch(self.x), to_torch(self.w)
        signature, (x_view, w_view) = _forward(options, x.permute(of_x), w.permute(of_w), b, self.y)
        views = x_view.after(of_x), w_view.after(of_w)
        plan = KernelPlan(signature, views, tuple(range(len(of_x))), x, b)
        return FrozenKernelPlan(plan) if self.frozen else plan


class Gradient(NamedTuple):
    """`compute(Gradient(shape, is_of_input), options, dLdy, other)`: the gradient of an input or weight of this shape.

    `other` is the weight, or for the gradient of a weight the input.
    """

    shape: tuple[int, ...]
    is_of_input: bool

    def by_torch(self, options: ConvOptions, dy: Tensor, other: Tensor, _: None) -> Tensor:
        """torch's own result."""
        like = dy.new_empty(1).expand(self.shape)  # only its shape is read
        x, w = (like, other) if self.is_of_input else (other, like)
        dx, dw, _ = gradients_by_torch(options, dy, x, w, [self.is_of_input, not self.is_of_input, False])
        return dx if self.is_of_input else dw

    def shapes(self, dy: Tensor, other: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Shapes of input and weight."""
        return (self.shape, other.shape) if self.is_of_input else (other.shape, self.shape)

    def plan(self, options: ConvOptions, dy: Tensor, other: Tensor, _: None) -> Plan:
        """The plan for a launch. Raises OperationError."""
        if self.is_of_input:
            layout = options.output_layout or result_layout(dy, other)
            dy_view = kernel_view(dy, layout)
            other_view = weight_view(other, dy_view.order)
            layouts = layout, layout_of(other_view.order), layout_of(dy_view.order)
        else:
            layout = options.output_layout or CHANNELS_FIRST[len(self.shape) - 2]
            dy_view, other_view = kernel_view(dy, layout), kernel_view(other, layout)
            layouts = layout_of(other_view.order), layout, layout_of(dy_view.order)
        mode = Mode.INPUT_BACKWARD if self.is_of_input else Mode.WEIGHT_BACKWARD
        signature = _signature(self.shapes(dy, other), options, layouts, dy.dtype, mode=mode)
        return KernelPlan(signature, (dy_view, other_view), to_torch(layout), dy)


Direction = Forward | ForwardInLayouts | Gradient


def compute(
    direction: Direction, options: ConvOptions, first: Tensor, second: Tensor, bias: Tensor | None = None
) -> Tensor:
    """A result or gradient of tensors with torch's axes, without autograd. Raises torch's errors for arguments that torch rejects."""
    try:
        key = (
            type(direction),  # as tuples, directions of two classes may be equal
            direction,
            options,
            first.shape,
            first.stride(),
            first.dtype,
            first.device,
            second.shape,
            second.stride(),
            second.dtype,
            second.device,
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
            # They are read when a kernel is needed, so that a program can set them at any time.
            settings_state(),
        )
    except (RuntimeError, NotImplementedError):  # sparse tensors have no strides
        return direction.by_torch(options, first, second, bias)
    plan = _plans.get(key)
    if plan is None:
        plan = _plan(direction, options, first, second, bias)
        if len(_plans) >= _LIMIT:
            _plans.clear()
        _plans[key] = plan
    try:
        return plan(first, second, bias)
    except DispatchProfilerError as error:
        launch_settings()  # raises if the environment is invalid
        # A kernel that cannot be compiled or launched costs a message, not the program.
        _log.warning("a convolution of %s is computed by torch: %s", tuple(first.shape), error)
        plan = _plans[key] = partial(_by_torch, direction, options)
        return plan(first, second, bias)


def _forward(
    options: ConvOptions, x: Tensor, w: Tensor, b: Tensor | None, layout: str
) -> tuple[ConvSignature, tuple[KernelView, KernelView]]:
    """What computes a result with memory in `layout`, and how it reads input and weight. Raises OperationError."""
    x_view = kernel_view(x, layout)
    w_view = weight_view(w, x_view.order)
    layouts = layout_of(x_view.order), layout_of(w_view.order), layout
    signature = _signature((x.shape, w.shape), options, layouts, x.dtype, bias=b is not None)
    return signature, (x_view, w_view)


def output_shape(x: Sequence[int], w: Sequence[int], options: ConvOptions) -> tuple[int, ...]:
    """Shape of the result, for options of as many axes as the weight has."""
    extents = zip(x[2:], w[2:], options.stride, options.padding, options.dilation, strict=True)
    return (
        x[0],
        w[0],
        *((size + 2 * pad - hole * (taps - 1) - 1) // step + 1 for size, taps, step, pad, hole in extents),
    )


def _by_torch(
    direction: Direction, options: ConvOptions, first: Tensor, second: Tensor, bias: Tensor | None
) -> Tensor:
    """torch's own result, in the layout of the options."""
    y = direction.by_torch(options, first, second, bias)
    if options.output_layout is None:
        return y
    strides = strides_of(y.shape, options.output_layout)
    return y if y.stride() == strides else y.new_empty_strided(y.shape, strides).copy_(y)


def gradients_by_torch(
    options: ConvOptions, dy: Tensor, x: Tensor, w: Tensor, mask: list[bool]
) -> Sequence[Any]:
    """torch's own gradients of input, weight and bias, each computed only if `mask` has True for it."""
    stride, padding, dilation, groups, _ = options
    unpadded = [0] * len(padding)
    return _aten.convolution_backward.default(
        dy, x, w, [w.shape[0]], stride, padding, dilation, False, unpadded, groups, mask
    )


def _plan(
    direction: Direction, options: ConvOptions, first: Tensor, second: Tensor, bias: Tensor | None
) -> Plan:
    by_torch = partial(_by_torch, direction, options)
    shapes = direction.shapes(first, second)
    reason = _tensor_reason(first, second, bias) or _shape_reason(*shapes, options)
    if bias is not None and not reason and tuple(bias.shape) != (shapes[1][0],):
        reason = "the bias does not fit"
    if reason:
        _log.debug("a convolution of %s is computed by torch: %s", tuple(first.shape), reason)
        return by_torch
    try:
        return direction.plan(options, first, second, bias)
    except OperationError as error:
        _log.info("a convolution of %s is computed by torch: %s", tuple(first.shape), error)
        return by_torch


def _signature(
    shapes: tuple[Sequence[int], Sequence[int]],
    options: ConvOptions,
    layouts: tuple[str, str, str],
    dtype: Any,
    **fields: Any,
) -> ConvSignature:
    """The signature for input and weight of these shapes, with torch's axes, in these layouts.

    Raises OperationError.
    """
    x, w, y = layouts
    signature = ConvSignature(
        input_shape=[shapes[0][axis] for axis in to_memory(x)],
        kernel_shape=[shapes[1][axis] for axis in to_memory(w)],
        input_layout=x,
        kernel_layout=w,
        output_layout=y,
        dtype=dtype,
        stride=options.stride,
        padding=options.padding,
        dilation=options.dilation,
        groups=options.groups,
        **fields,
    )
    _ = signature.launch  # raises here, not at the first launch
    return signature


def _tensor_reason(*tensors: Tensor | None) -> str:
    """Why kernels do not take these tensors together; empty if they do."""
    first, *others = [each for each in tensors if each is not None]
    if any(type(each) not in PLAIN or each.layout is not torch.strided for each in (first, *others)):
        return "a tensor is not plain and dense"
    if first.device.type not in ("cpu", "cuda") or (first.is_cuda and torch.version.hip):
        return f"kernels do not run on {first.device}"
    if any(each.device != first.device or each.dtype is not first.dtype for each in others):
        return "types or devices differ"
    if first.dtype not in KERNEL_TYPES:
        return f"kernels do not compute {first.dtype}"
    return ""


def _shape_reason(x: Sequence[int], w: Sequence[int], options: ConvOptions) -> str:
    """Why kernels do not compute a convolution of these shapes, with torch's axes; empty if they do."""
    axes = len(w) - 2
    if axes not in CHANNELS_FIRST or len(x) != len(w) or any(len(each) != axes for each in options[:3]):
        return "the ranks do not fit"
    stride, padding, dilation, groups, _ = options
    if min(stride) < 1 or min(dilation) < 1 or min(padding) < 0 or groups < 1:
        return "an option is out of range"
    if w[1] * groups != x[1] or w[0] % groups:
        return "the channels do not fit"
    y = output_shape(x, w, options)
    if min(*x, *w, *y) < 1:
        return "an axis is empty"
    return "it is too large" if max(map(math.prod, (x, w, y))) > _MOST_ELEMENTS else ""
