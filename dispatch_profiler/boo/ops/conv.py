"""`boo_conv`: convolutions of tensors, computed by kernels of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as functional

from dispatch_profiler.boo.environment import freezes_weights, uses_backward_kernels
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.conv_plans import (
    TORCH_FUNCTIONS,
    ConvOptions,
    Forward,
    ForwardInLayouts,
    Gradient,
    compute,
    gradients_by_torch,
)
from dispatch_profiler.boo.ops.flops import CONVOLUTION_FORMULAS, count_flops
from dispatch_profiler.boo.ops.layouts import (
    CHANNELS_FIRST,
    checked,
    result_layout,
    strides_of,
    to_memory,
    to_torch,
)
from dispatch_profiler.boo.ops.library import (
    autograd_function,
    define,
    is_eager,
    register_autocast,
    register_autograd,
    register_vmap,
    untraced,
    uses_torch,
)
from dispatch_profiler.boo.weights.derivations import derived

#: (options, x, w, b) -> the result
_compute_forward: Callable[..., Tensor] = partial(compute, Forward())
_compute_frozen: Callable[..., Tensor] = partial(compute, Forward(frozen=True))
_LARGEST = 2**63 - 1
_NO_LAYOUTS = (None, None, None, None)


def boo_conv(
    input: Tensor,  # as torch names it
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    shared_layout: str | None = None,
    input_layout: str | None = None,
    kernel_layout: str | None = None,
    output_layout: str | None = None,
    freeze: bool | None = None,
) -> Tensor:
    """`torch.nn.functional.conv1d`, `conv2d` or `conv3d`, according to the rank of `weight`.

    Layouts are orders of the letters NCH, NCHW or NCDHW: they say which axis of `input`, `weight` and the result is
    which; N and C of a weight are its outputs and its inputs divided by `groups`. `shared_layout` replaces those that are
    not given, and NCHW all of them. Tensors are read where they are if their memory is dense, in whatever order of
    axes. The memory of a result with axes NCHW is in channels-last format if the memory of the input or of the weight is, as
    torch's. A weight in another layout than the kernel's is permuted, and again once it has changed.

    With `freeze`, weight and bias are snapshots, taken at the first call with them and used until
    `dispatch_profiler.boo.refreeze`; kernels may have the weight packed. Calls that autograd records ignore it. None
    leaves it to `BOO_FREEZE`.

    What kernels do not compute, such as integers or empty tensors, is computed by torch, which also rejects what is
    invalid. Gradients are computed by torch, or by kernels with BOO_USE_BACKWARD_KERNELS=1. Raises UsageError for an
    invalid layout or environment variable.
    """
    layouts = (shared_layout, input_layout, kernel_layout, output_layout)
    frozen = freezes_weights() if freeze is None else freeze
    if layouts == _NO_LAYOUTS:
        if weight is not None and not torch.compiler.is_compiling() and is_eager(input, weight, bias):
            try:
                options = _usual_options(weight.ndim - 2, stride, padding, dilation, groups)
            except TypeError:  # a list
                options = None
            if options is not None and input.ndim == weight.ndim:
                return _eagerly(input, weight, bias, options, frozen)
        given = (stride, padding, dilation, groups)
        if isinstance(input, torch.Tensor) and isinstance(weight, torch.Tensor):
            return _convolution(input, weight, bias, given, None, frozen)
    elif isinstance(input, torch.Tensor) and isinstance(weight, torch.Tensor):
        return _with_layouts(layouts, input, weight, bias, (stride, padding, dilation, groups), frozen)
    return _rejected(2, input, weight, bias, stride, padding, dilation, groups)


def _with_layouts(
    layouts: tuple[str | None, ...],
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    options: tuple[Any, ...],
    frozen: bool,
) -> Tensor:
    """A convolution of tensors with axes in `layouts`: shared, input, kernel, output."""
    axes = w.dim() - 2
    if axes not in CHANNELS_FIRST or x.dim() not in (axes + 1, axes + 2):
        return _rejected(axes, x, w, b, *options)
    is_batched = x.dim() == axes + 2
    if is_batched and not torch.compiler.is_compiling() and is_eager(x, w, b) and not _records(x, w, b):
        try:
            usual, direction = _usual_options(axes, *options), _known_layouts(axes, *layouts)
        except TypeError:  # a list
            usual = None
        if usual is not None:
            return compute(direction._replace(frozen=frozen), usual, x, w, b)
    found_layouts = _layouts(axes, *layouts)
    x = x if is_batched else x.unsqueeze(found_layouts.x.index("N"))
    x, w = x.permute(to_torch(found_layouts.x)), w.permute(to_torch(found_layouts.w))
    y = _convolution(x, w, b, options, found_layouts.y, frozen).permute(to_memory(found_layouts.y))
    return y if is_batched else y.squeeze(found_layouts.y.index("N"))


def _layouts(
    axes: int, shared: str | None, x: str | None, kernel: str | None, output: str | None
) -> ForwardInLayouts:
    """The layouts of tensors with so many spatial axes. Raises UsageError."""
    names, default = ("input_layout", "kernel_layout", "output_layout"), shared or CHANNELS_FIRST[axes]
    of_x, of_w, of_y = (
        checked(name if own else "shared_layout", own or default, axes)
        for name, own in zip(names, (x, kernel, output), strict=True)
    )
    return ForwardInLayouts(of_x, of_w, of_y)


_known_layouts = lru_cache(maxsize=256)(_layouts)


def _convolution(
    x: Tensor, w: Tensor, b: Tensor | None, given: tuple[Any, ...], layout: str | None, frozen: bool
) -> Tensor:
    """A convolution of tensors with torch's axes, whose result's memory has this layout, or torch's."""
    axes = w.dim() - 2
    if (
        axes not in CHANNELS_FIRST
        or x.dim() != axes + 2
        or (b is not None and not isinstance(b, torch.Tensor))
    ):
        if axes in CHANNELS_FIRST and x.dim() == axes + 1:
            return _convolution(x.unsqueeze(0), w, b, given, layout, frozen).squeeze(0)
        return _rejected(axes, x, w, b, *given)
    stride, padding, dilation, groups = given
    if not isinstance(groups, (int, torch.SymInt)) or isinstance(groups, bool):
        return _rejected(axes, x, w, b, *given)
    if isinstance(padding, str):
        if padding not in ("same", "valid") or (padding == "same" and _ones(stride, axes) != (1,) * axes):
            return _rejected(axes, x, w, b, *given)
        x, padding = _padded(x, w, _ones(dilation, axes)) if padding == "same" else (x, 0)
    try:
        options = ConvOptions(
            _each(stride, axes), _each(padding, axes), _each(dilation, axes), int(groups), layout
        )
    except (TypeError, ValueError):
        return _rejected(axes, x, w, b, *given)
    if not torch.compiler.is_compiling() and is_eager(x, w, b):
        return _eagerly(x, w, b, options, frozen)
    return _dispatched(x, w, b, options, frozen)


def _usual_options(axes: int, stride: Any, padding: Any, dilation: Any, groups: Any) -> ConvOptions | None:
    """The options of most calls: of whole numbers, one for each axis or one for all; otherwise None.

    Raises TypeError for some that are not.
    """
    given = [(each,) if type(each) is int else each for each in (stride, padding, dilation)]
    if not all(type(each) is tuple for each in given):
        return None
    first, second, third = given
    # Without tuples in the key, in which 1, 1.0 and True are the same.
    return _options_of_numbers(axes, groups, len(first), len(second), *first, *second, *third)


@lru_cache(maxsize=1024, typed=True)
def _options_of_numbers(axes: int, groups: Any, first: int, second: int, *numbers: Any) -> ConvOptions | None:
    """The options, whose `stride` is the `first` of the numbers, and `padding` the `second` that follow."""
    if axes not in CHANNELS_FIRST or not all(type(each) is int for each in (groups, *numbers)):
        return None
    values = numbers[:first], numbers[first : first + second], numbers[first + second :]
    try:
        stride, padding, dilation = (_each(value, axes) for value in values)
    except ValueError:
        return None
    return ConvOptions(stride, padding, dilation, groups)


def _eagerly(x: Tensor, w: Tensor, b: Tensor | None, options: ConvOptions, frozen: bool) -> Tensor:
    """The result for tensors and a state that `is_eager` accepts, without the dispatcher."""
    if _records(x, w, b):
        return _apply_eagerly(_compute_forward, x, w, b, options)
    return (_compute_frozen if frozen else _compute_forward)(options, x, w, b)


def _records(x: Tensor, w: Tensor, b: Tensor | None) -> bool:
    """Whether autograd records a call with these tensors."""
    return torch.is_grad_enabled() and (
        x.requires_grad or w.requires_grad or (b is not None and b.requires_grad)
    )


def _dispatched(x: Tensor, w: Tensor, b: Tensor | None, options: ConvOptions, frozen: bool) -> Tensor:
    """The operator's result, or torch's where the operator does not support the tensors."""
    stride, padding, dilation, groups, layout = options
    layout = layout or untraced(result_layout, x, w)
    if uses_torch(x, w, b):
        return TORCH_FUNCTIONS[w.dim() - 2](x, w, b, stride, padding, dilation, groups)
    return convolution(x, w, b, stride, padding, dilation, groups, layout, frozen)


def _each(value: Any, axes: int) -> tuple[Any, ...]:
    """One number for each axis, from one or from several.

    Raises TypeError for all but whole numbers in a tuple or list, and ValueError for numbers of more than 64 bits: torch
    rejects them, or makes something of them itself.
    """
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for each in numbers:
        if isinstance(each, bool) or not isinstance(each, (int, torch.SymInt)):
            raise TypeError(f"{each!r} is no whole number")
        if isinstance(each, int) and abs(each) > _LARGEST:
            raise ValueError(f"{each} has more than 64 bits")
    return numbers * axes if len(numbers) == 1 else numbers


def _ones(value: Any, axes: int) -> Any:
    """`_each`, or what `_each` cannot read."""
    try:
        return _each(value, axes)
    except (TypeError, ValueError):
        return value


def _padded(x: Tensor, w: Tensor, dilation: Any) -> tuple[Tensor, Any]:
    """Input and padding for a result of the input's shape, with the odd pixel of an even window on the high side."""
    totals = [
        hole * (taps - 1) for hole, taps in zip(dilation, untraced(lambda: tuple(w.shape[2:])), strict=True)
    ]
    low = tuple(total // 2 for total in totals)
    if all(total % 2 == 0 for total in totals):
        return x, low
    after = [side for total in reversed(totals) for side in (0, total % 2)]
    return functional.pad(x, after), low


def _rejected(axes: int, *args: Any) -> Tensor:
    """What torch makes of arguments that are not a convolution: as a rule, its error."""
    return TORCH_FUNCTIONS[min(max(axes, 1), 3)](*args)


# -- the operator ------------------------------------------------------------------------------------


def _options_of(
    stride: Any, padding: Any, dilation: Any, groups: int, layout: str, freeze: bool = False
) -> tuple[ConvOptions, bool]:
    """The options of the operator, and `freeze`, which the dispatcher leaves out if it is False."""
    return ConvOptions(tuple(stride), tuple(padding), tuple(dilation), groups, layout), freeze


def _compute(x: Tensor, w: Tensor, b: Tensor | None, *options: Any) -> Tensor:
    given, frozen = _options_of(*options)
    return (_compute_frozen if frozen else _compute_forward)(given, x, w, b)


def _compute_input_gradient(dy: Tensor, w: Tensor, shape: Sequence[int], *options: Any) -> Tensor:
    return compute(Gradient(tuple(shape), is_of_input=True), _options_of(*options)[0], dy, w)


def _compute_weight_gradient(dy: Tensor, x: Tensor, shape: Sequence[int], *options: Any) -> Tensor:
    return compute(Gradient(tuple(shape), is_of_input=False), _options_of(*options)[0], dy, x)


def _fake(x: Tensor, w: Tensor, b: Tensor | None, *options: Any) -> Tensor:
    """An empty result; torch's operator checks the arguments."""
    given, _ = _options_of(*options)
    y = Forward().by_torch(given, x, w, b)
    return y.new_empty_strided(y.shape, strides_of(y.shape, options[4]))


def _fake_gradient(dy: Tensor, _: Tensor, shape: Sequence[int], *options: Any) -> Tensor:
    return dy.new_empty_strided(shape, strides_of(tuple(shape), options[-1]))


_OPTIONS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str output_layout"
convolution = define(
    f"convolution(Tensor input, Tensor weight, Tensor? bias, {_OPTIONS}, bool freeze=False) -> Tensor",
    _compute,
    _fake,
)
input_gradient = define(
    f"convolution_input_backward(Tensor grad_output, Tensor weight, SymInt[] input_shape, {_OPTIONS}) -> Tensor",
    _compute_input_gradient,
    _fake_gradient,
)
weight_gradient = define(
    f"convolution_weight_backward(Tensor grad_output, Tensor input, SymInt[] weight_shape, {_OPTIONS}) -> Tensor",
    _compute_weight_gradient,
    _fake_gradient,
)


# -- autograd ----------------------------------------------------------------------------------------


def _convolution_forward(
    ctx: Any, run: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor | None, options: ConvOptions
) -> Tensor:
    """`run` computes the result."""
    ctx.save_for_backward(x, w)
    ctx.options, ctx.has_bias = options, b is not None
    return run(options, x, w, b)


def _convolution_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    # A second derivative needs operators that autograd knows, which are torch's.
    use_kernels = uses_backward_kernels() and not torch.is_grad_enabled()
    gradients = _gradients_by_kernels if use_kernels else gradients_by_torch
    mask = [*ctx.needs_input_grad[1:3], ctx.has_bias and ctx.needs_input_grad[3]]
    return (None, *gradients(ctx.options, dy, x, w, mask), None)


def _gradients_by_kernels(
    options: ConvOptions, dy: Tensor, x: Tensor, w: Tensor, mask: list[bool]
) -> Sequence[Tensor | None]:
    layouts = (*options[:4], result_layout(x, w))  # as torch's own, also of the weight
    return (
        input_gradient(dy, w, x.shape, *layouts) if mask[0] else None,
        weight_gradient(dy, x, w.shape, *layouts) if mask[1] else None,
        dy.sum([0, *range(2, dy.dim())]) if mask[2] else None,
    )


def _differentiable(
    run: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor | None, *options: Any
) -> Tensor:
    given, _ = _options_of(*options)  # nothing is frozen where gradients are needed
    return _apply(lambda given, x, w, b: run(x, w, b, *given), x, w, b, given)


for _name, _formula in CONVOLUTION_FORMULAS.items():
    count_flops(_name, _formula)

_apply, _apply_eagerly = autograd_function(_convolution_forward, _convolution_backward)
register_autograd(convolution, _differentiable)


# -- autocast and vmap -------------------------------------------------------------------------------


def _cast(tensor: Tensor, dtype: torch.dtype, args: tuple[Any, ...]) -> Tensor:
    """`tensor.to(dtype)` of an argument of the operator: once for a frozen weight."""
    _, frozen = _options_of(*args[3:])
    needs_gradient = torch.is_grad_enabled() and tensor.requires_grad
    if frozen and tensor is not args[0] and tensor.dtype is not dtype and not needs_gradient:
        return derived(("type", dtype), lambda weight: weight.detach().to(dtype), tensor, frozen=True)
    return tensor.to(dtype)


register_autocast(convolution, "cpu", _cast)
register_autocast(convolution, "cuda", _cast)


def _batched(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, w: Tensor, b: Tensor | None, *options: Any
) -> tuple[Tensor, int]:
    """A batch of inputs is more images. A batch of weights is more groups."""
    x_dim, w_dim, b_dim = in_dims[:3]
    if w_dim is None and b_dim is None:
        images = x.movedim(x_dim, 0)
        y = convolution(images.flatten(0, 1), w, b, *options)
        return y.unflatten(0, images.shape[:2]), 0

    def in_batch(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    x, w = in_batch(x, x_dim).transpose(0, 1).flatten(1, 2), in_batch(w, w_dim).flatten(0, 1)
    b = None if b is None else in_batch(b, b_dim).flatten()
    given, _ = _options_of(*options)  # this weight is made for one call, so nothing is frozen
    y = convolution(x, w, b, *given._replace(groups=given.groups * info.batch_size))
    return y.unflatten(1, (info.batch_size, -1)), 1


register_vmap(convolution, _batched)
