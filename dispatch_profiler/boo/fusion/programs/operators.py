"""The operators of torch that programs may have: cheap operators that IREE compiles well."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, cast

import numpy as np
import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible, aten
from dispatch_profiler.boo.fusion.programs.values import Calls, Value
from dispatch_profiler.boo.launching.torch_types import Tensor

_torch: Any = torch
#: The smallest x for which exp(x) is not subnormal in f32, rounded up.
_LEAST_EXP = -87.0
#: Largest number of taps of a pooling window, which are unrolled.
_MAX_TAPS = 27

_ELEMENTWISE = (
    "abs.default add.Scalar add.Tensor clamp.default clamp_max.default clamp_min.default div.Scalar div.Tensor elu.default "
    "exp.default gelu.default hardsigmoid.default hardswish.default hardtanh.default leaky_relu.default maximum.default "
    "minimum.default mul.Scalar mul.Tensor neg.default pow.Tensor_Scalar reciprocal.default relu.default round.default rsqrt.default "
    "rsub.Scalar sigmoid.default silu.default sqrt.default sub.Scalar sub.Tensor tanh.default"
)
_REDUCTIONS = (
    "_adaptive_avg_pool2d.default _native_batch_norm_legit_no_training.default _safe_softmax.default _softmax.default "
    "amax.default amin.default avg_pool2d.default avg_pool3d.default linalg_vector_norm.default max_pool2d_with_indices.default "
    "max_pool3d_with_indices.default mean.dim native_group_norm.default sum.dim_IntList"
)
#: Operators that resize images. Those that first smooth them are not among them: some results of torch's are wrong.
_RESIZING = (
    "_upsample_nearest_exact1d.default _upsample_nearest_exact2d.default _upsample_nearest_exact3d.default "
    "upsample_bicubic2d.default upsample_bilinear2d.default upsample_linear1d.default upsample_nearest1d.default "
    "upsample_nearest2d.default upsample_nearest3d.default upsample_trilinear3d.default"
)
#: Operators that only change shapes and memory.
_VIEWS = (
    "alias.default clone.default expand.default permute.default reshape.default squeeze.dim squeeze.dims t.default "
    "transpose.int unsqueeze.default"
)
#: Operators that join, divide, extend or shuffle tensors.
_PIECES = (
    "cat.default channel_shuffle.default constant_pad_nd.default native_channel_shuffle.default roll.default "
    "slice.Tensor split.Tensor split_with_sizes.default stack.default unbind.int"
)
#: The operator of attention, whose first result programs compute, with operators of MOVES only.
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
GROUP_NORM = "native_group_norm"
#: Operators that replace rows of a tensor: see `updates`.
_UPDATES = "index_copy.default index_put.default"
#: Operators that become `reshape` in a program, since its values may be stored in another order.
_RESHAPES = (aten.view.default, aten._unsafe_view.default)
#: The operator that converts types. Programs compute in f32, so that it is a `clone` in them; also where it converts
#: whole numbers to i8, which only results have.
CONVERSION: Any = aten._to_copy.default


def _named(names: str) -> dict[str, Any]:
    operators = {}
    for name in names.split():
        packet, overload = name.split(".")
        operators[name.removesuffix(".default")] = getattr(getattr(aten, packet), overload)
    return operators


#: Name in a program -> operator.
OPERATORS: dict[str, Any] = {
    "getitem": operator.getitem,
    **_named(" ".join((_ELEMENTWISE, _REDUCTIONS, _RESIZING, _VIEWS, _PIECES))),
    **_named(f"select.int {ATTENTION}.default {_UPDATES}"),
}
#: Operator -> its name in a program.
NAMES: dict[Any, str] = {
    **{target: name for name, target in OPERATORS.items()},
    **dict.fromkeys(_RESHAPES, "reshape"),
    CONVERSION: "clone",
}
#: Names of operators that replace rows of a tensor.
UPDATES: frozenset[str] = frozenset(_named(_UPDATES))
VIEWS: frozenset[Any] = frozenset((operator.getitem, *_RESHAPES, *_named(_VIEWS).values()))
#: Names of operators that reduce windows of images, and of operators that resize images.
POOLS = frozenset(("_adaptive_avg_pool2d", *(f"avg_pool{axes}d" for axes in (2, 3)))) | frozenset(
    f"max_pool{axes}d_with_indices" for axes in (2, 3)
)
RESIZING = frozenset(NAMES[each] for each in _named(_RESIZING).values())
#: Names of operators whose results are views of what they read, and that take any strides.
MOVES: frozenset[str] = frozenset(NAMES[each] for each in VIEWS) | {
    *("select.int", "slice.Tensor", "split.Tensor", "split_with_sizes", "unbind.int")
}
#: Names of operators that move elements, or put zeros beside them.
COPIES: frozenset[str] = MOVES | {"cat", "constant_pad_nd", "roll", "stack"}
#: Named arguments that say where and how results are stored, which programs ignore.
STORAGE = frozenset(("memory_format", "layout", "device", "pin_memory"))


def check(target: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise NotFusible if a program may have the operator `target`, but not with these arguments."""
    if target is not CONVERSION and named.get("dtype") is not None:
        raise NotFusible("it converts types")
    if target in _CHECKS:
        _CHECKS[target](*arguments, **named)


def _group_norm_of_any(x: Tensor, *options: Any) -> Any:
    """Eager torch's operator, which takes contiguous tensors only."""
    return aten.native_group_norm.default(x.contiguous(), *options)


def _index_copy(x: Tensor, axis: int, positions: Tensor, rows: Tensor) -> Any:
    """Eager torch's operator, for positions of any type."""
    return aten.index_copy.default(x, axis, positions.long(), rows)


def _index_put(x: Tensor, positions: Sequence[Tensor | None], rows: Tensor, accumulate: bool = False) -> Any:
    """Eager torch's operator, for positions of any type."""
    given = [None if each is None else each.long() for each in positions]
    return aten.index_put.default(x, given, rows, accumulate)


#: Name in a program -> what computes it for tensors of any strides.
_EAGER: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    GROUP_NORM: _group_norm_of_any,
    "index_copy": _index_copy,
    "index_put": _index_put,
}


def evaluate(
    program: Calls,
    inputs: Sequence[Any],
    change: Callable[[Any], Any] | None = None,
    operators: Mapping[str, Callable[..., Any]] = _EAGER,
) -> list[Any]:
    """The outputs of a program for tensors with torch's shapes, computed by torch's `operators`.

    `change` is applied to the result of each call.
    """
    values = list(inputs)
    for name, arguments, named in program.parsed_calls:
        result = operators[name](*_filled(arguments, values), **_filled(named, values))
        values.append(result if change is None else change(result))
    return [values[each] for each in program.returned]


def evaluate_stored(
    program: Calls, operands: Sequence[np.ndarray], *, rounds: bool = False
) -> list[np.ndarray]:
    """The results of a program's kernel for its operands, in float64. With `rounds`, rounds each call's result to f32."""
    given = [torch.from_numpy(each.astype(np.float64)) for each in operands]
    inputs = [in_torch_order(each, value) for each, value in zip(given, program.inputs, strict=True)]
    with torch.no_grad():
        results = evaluate(program, inputs, _rounded if rounds else None)
    return [stored(each, value).numpy() for each, value in zip(results, program.outputs, strict=True)]


def _rounded(result: Any) -> Any:
    """A float64 tensor, or a list of them, with elements rounded to f32; any other result as it is."""
    if isinstance(result, (tuple, list)):
        return type(result)(map(_rounded, result))
    is_wide = isinstance(result, torch.Tensor) and result.dtype is torch.float64
    return result.float().double() if is_wide else result


def in_torch_order(tensor: Tensor, value: Value) -> Tensor:
    """A tensor with the shape of its memory -> the tensor with torch's shape."""
    axes = tensor.dim()
    return tensor if value.reading == "rows" else tensor.permute(0, axes - 1, *range(1, axes - 1))


def stored(tensor: Tensor, value: Value) -> Tensor:
    """Inverse of `in_torch_order`."""
    return tensor if value.reading == "rows" else tensor.permute(0, *range(2, tensor.dim()), 1)


def _filled(data: Any, values: Sequence[Any]) -> Any:
    if isinstance(data, list):
        return [_filled(each, values) for each in data]
    if isinstance(data, dict):
        if set(data) == {"value"}:
            return values[data["value"]]
        return {name: _filled(each, values) for name, each in data.items()}
    return data


# -- forms that IREE compiles to fast kernels: on images whose channels come last -----------------------


def _each(given: Any, axes: int) -> list[int]:
    """An option of a pool for each axis."""
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    return [int(each) for each in (values if len(values) == axes else [values[0]] * axes)]


def _taps(
    images: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[Tensor]:
    """For each tap of a pooling window, the pixels that it reads, of padded `images`: n x pixels x c."""
    extents = images.shape[1:-1]
    windows = [
        (extent - step * (taps - 1) - 1) // by
        for extent, taps, by, step in zip(extents, kernel, stride, dilation, strict=True)
    ]
    found = []
    for tap in product(*map(range, kernel)):
        pixels = [
            slice(at * step, at * step + count * by + 1, by)
            for at, step, count, by in zip(tap, dilation, windows, stride, strict=True)
        ]
        places = (slice(None), *pixels)
        found.append(images[places])
    return found


@dataclass(frozen=True)
class _Pool:
    """The window of a pool, by axis: taps, steps between windows and taps, and padding before and behind the image."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    before: list[int]
    behind: list[int]

    @classmethod
    def of(
        cls, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, *, ceil_mode: bool
    ) -> _Pool:
        """A pool with torch's options, of images whose channels come first."""
        axes = x.dim() - 2
        taps, pads, steps = _each(kernel, axes), _each(padding, axes), _each(dilation, axes)
        strides = _each(stride, axes) if stride else taps
        spans = [step * (each - 1) + 1 for step, each in zip(steps, taps, strict=True)]
        behind = pads
        if ceil_mode:
            behind = list(map(_pad_behind, x.shape[2:], spans, strides, pads))
        return cls(taps, strides, steps, pads, behind)

    def taps(self, x: Tensor, fill: float) -> list[Tensor]:
        """For each tap, the pixels that it reads, with `fill` outside of the image."""
        images = x.permute(0, *range(2, x.dim()), 1)
        return _taps(_padded(images, self.before, self.behind, fill), self.kernel, self.stride, self.dilation)

    def divisors(self, x: Tensor, *, counts_padding: bool) -> Tensor | float:
        """The number of pixels that each window averages, in the image and perhaps in its padding."""
        if self.behind == self.before and (counts_padding or not any(self.before)):
            return float(math.prod(self.kernel))
        ones = torch.ones((1, *x.shape[2:], 1), dtype=x.dtype, device=x.device)
        counted = self.before if counts_padding else [0] * len(self.before)
        extended = _padded(ones, counted, counted, 1.0)
        before = [pad - each for pad, each in zip(self.before, counted, strict=True)]
        behind = [pad - each for pad, each in zip(self.behind, counted, strict=True)]
        taps = _taps(_padded(extended, before, behind, 0.0), self.kernel, self.stride, self.dilation)
        return sum(taps[1:], taps[0])


def _padded(images: Tensor, before: Sequence[int], behind: Sequence[int], fill: float) -> Tensor:
    """Images whose channels come last, with pixels of `fill` around them."""
    if not any((*before, *behind)):
        return images
    pads = [0, 0]
    for pair in zip(reversed(before), reversed(behind), strict=True):
        pads += pair
    return cast(Tensor, aten.constant_pad_nd(images, pads, fill))


def _pad_behind(extent: int, span: int, step: int, pad: int) -> int:
    """The padding behind an axis so that the last window, which begins inside the image or before it, fits."""
    windows = -(-(extent + 2 * pad - span) // step) + 1
    if (windows - 1) * step >= extent + pad:
        windows -= 1
    return max(pad, (windows - 1) * step + span - extent - pad)


def _channels_first(images: Tensor) -> Tensor:
    axes = images.dim()
    return images.permute(0, axes - 1, *range(1, axes - 1))


def _maximum(x: Tensor, y: Tensor) -> Tensor:
    """NaN where one of the arguments is NaN. The importer's form drops the NaN of `x`."""
    return _torch.where((x < y) | (y != y), y, x)


def _minimum(x: Tensor, y: Tensor) -> Tensor:
    return _torch.where((x > y) | (y != y), y, x)


def _max_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    pool = _Pool.of(x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    maximum, *rest = pool.taps(x, -float("inf"))
    for each in rest:
        maximum = _maximum(maximum, each)
    largest = _channels_first(maximum)
    return largest, largest  # the second result stands in for the indices, which nothing reads


def _check_max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> None:
    _check_windows(x, kernel)


def _avg_pool(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Tensor:
    pool = _Pool.of(x, kernel, stride, padding, 1, ceil_mode=ceil_mode)
    total, *rest = pool.taps(x, 0.0)
    for each in rest:
        total = total + each
    divisors = divisor_override or pool.divisors(x, counts_padding=count_include_pad)
    return _channels_first(total * (1.0 / divisors))


def _check_avg_pool(x: Any, kernel: Any, *_: Any, **named: Any) -> None:
    _check_windows(x, kernel)


def _check_windows(x: Any, kernel: Any) -> None:
    if x.dim() not in (4, 5) or math.prod(_each(kernel, x.dim() - 2)) > _MAX_TAPS:
        raise NotFusible("only pooling windows of at most 27 taps on images are supported")


def _adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    (n, c, h, w), (oh, ow) = x.shape, size
    return x.reshape(n, c, oh, h // oh, ow, w // ow).mean((3, 5))


def _check_adaptive_avg_pool(x: Any, size: Sequence[int]) -> None:
    if x.dim() != 4 or x.shape[2] % size[0] or x.shape[3] % size[1]:
        raise NotFusible("its windows differ in size")


def _sum(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Adds in f64, so that the order of millions of terms does not matter, and rounds once."""
    if x.dtype is torch.float64:
        return NotImplemented  # the operator itself
    return aten.sum.dim_IntList(x.double(), dim, keepdim).to(x.dtype)


def _mean(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    total = aten.sum.dim_IntList(x.double(), dim, keepdim)
    return (total / (x.numel() // max(1, total.numel()))).to(x.dtype)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    powers = torch.exp(x - x.amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


def _safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Zeros where all elements are minus infinity."""
    largest = x.amax(dim, keepdim=True)
    hidden = _torch.where(largest == -float("inf"), torch.zeros_like(largest), largest)
    powers = torch.exp(x - hidden)
    total = powers.sum(dim, keepdim=True)
    return cast(Tensor, _torch.where(total == 0, powers, powers / total))


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Adds squares in f64, as `_sum` does."""
    wide = x.double()
    return torch.sqrt(aten.sum.dim_IntList(wide * wide, dim, keepdim)).to(x.dtype)


def _check_vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> None:
    if ord != 2:
        raise NotFusible("it is no Euclidean norm")


def _group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, pixels: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    """Adds in f64: the pixels of each channel first, row by row, so that threads share the rows and vectors are channels.

    In f64, the variance of an image far from zero is precise without another pass over the image.
    """
    wide, axes = x.double(), range(x.dim() - 1, 1, -1)

    def means(each: Tensor) -> Tensor:
        for axis in axes:
            each = aten.sum.dim_IntList(each, [axis], False)
        total = each.reshape(n, groups, channels // groups).sum(2, keepdim=True)
        return (total / (pixels * channels // groups)).expand(n, groups, channels // groups)

    mean = means(wide)
    variance = torch.clamp(means(wide * wide) - mean * mean, min=0)
    scale = torch.rsqrt(variance + eps).reshape(n, channels)
    if weight is not None:
        scale = scale * weight.double()
    shift = -mean.reshape(n, channels) * scale
    if bias is not None:
        shift = shift + bias.double()
    scale, shift = (each.to(x.dtype).reshape(n, channels, *[1] * len(axes)) for each in (scale, shift))
    result = x * scale + shift
    return (result, result, result)  # the other two stand in for statistics, which nothing reads


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    def along(vector: Tensor) -> Tensor:
        return vector.reshape(1, -1, *[1] * (x.dim() - 2))

    scale = torch.rsqrt(variance + eps)
    scaled = (x - along(mean)) * along(scale if weight is None else scale * weight)
    return (scaled if bias is None else scaled + along(bias), mean, variance)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joins images with channels last in memory in the order of their memory, so that IREE does not move the channels."""
    axes = tensors[0].dim()
    order = [0, *range(2, axes), 1]
    if axes not in (4, 5) or not all(_is_channels_last(each, order) for each in tensors):
        return NotImplemented  # the operator itself
    joined = _torch.cat([each.permute(order) for each in tensors], order.index(dim % axes))
    return _channels_first(joined)


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([each.unsqueeze(dim) for each in tensors], dim)


def _roll(x: Tensor, shifts: Any, dims: Any) -> Tensor:
    for shift, dim in zip(_listed(shifts), _listed(dims), strict=True):
        start = -shift % x.shape[dim]
        if start:
            parts = [aten.slice.Tensor(x, dim, start, x.shape[dim]), aten.slice.Tensor(x, dim, 0, start)]
            x = torch.cat(parts, dim)
    return x


def _check_roll(x: Any, shifts: Any, dims: Any = ()) -> None:
    if not _listed(dims):
        raise NotFusible("it regroups rows")


def _listed(given: Any) -> list[int]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _check_pad(x: Any, pad: Sequence[int], value: float = 0) -> None:
    if min(pad) < 0:
        raise NotFusible("it has negative padding")


def _split(x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
    """As slices: the importer lacks lists of tensors some of which nothing reads."""
    extent = x.shape[dim]
    sizes = [min(size, extent - start) for start in range(0, extent, size)] if isinstance(size, int) else size
    ends = list(accumulate(sizes))
    return [aten.slice.Tensor(x, dim, end - each, end) for each, end in zip(sizes, ends, strict=True)]


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [aten.select.int(x, dim, at) for at in range(x.shape[dim])]


def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, *pixels = x.shape
    return x.reshape(n, groups, c // groups, *pixels).transpose(1, 2).reshape(x.shape)


def _is_channels_last(tensor: Tensor, order: Sequence[int]) -> bool:
    return not tensor.is_contiguous() and tensor.permute(*order).is_contiguous()


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """torch's formula. The importer's form rounds sqrt(2 / pi) to four digits."""
    if approximate == "none":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _exp(x: Tensor) -> Tensor:
    """Returns subnormal results where the compiler's form returns 0. Adding 32 to such small arguments is exact."""
    from torch.fx.experimental.proxy_tensor import decompose

    is_small = x < _LEAST_EXP
    with decompose({}):  # the operator itself
        powers = torch.exp(_torch.where(is_small, x + 32.0, x))
    return _torch.where(is_small, powers * math.exp(-32.0), powers)


#: Exponents whose powers torch computes as products, roots and reciprocals too.
_POWERS: dict[float, Callable[[Any], Any]] = {
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: torch.sqrt,
    -0.5: torch.rsqrt,
    -1: torch.reciprocal,
}


def _power(x: Tensor, exponent: float) -> Tensor:
    return cast(Tensor, _POWERS[exponent](x))


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    """Precise for small arguments. The importer's form subtracts 1 from exp(x), which rounds to 1 there."""
    return _torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Keeps NaN. The importer's form drops NaN if there is only one bound."""
    if min is not None:
        x = _torch.where(x < min, torch.full_like(x, min), x)
    return x if max is None else _torch.where(x > max, torch.full_like(x, max), x)


def _hardtanh(x: Tensor, min_val: Any = -1.0, max_val: Any = 1.0) -> Tensor:
    return _clamp(x, min_val, max_val)


def _clamp_max(x: Tensor, max: Any) -> Tensor:
    return _clamp(x, None, max)


def _reciprocal(x: Tensor) -> Tensor:
    """Without the check for zeros of the importer's form, which nothing is fused with."""
    return torch.full_like(x, 1.0) / x


#: Operator -> a function that computes the same from other operators.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.reciprocal.default: _reciprocal,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _avg_pool,
    aten.avg_pool3d.default: _avg_pool,
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
    aten._softmax.default: _softmax,
    aten._safe_softmax.default: _safe_softmax,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.native_group_norm.default: _group_norm,
    aten.stack.default: _stack,
    aten.roll.default: _roll,
    aten.cat.default: _cat,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.native_channel_shuffle.default: _channel_shuffle,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: _unbind,
    aten.mean.dim: _mean,
    aten.sum.dim_IntList: _sum,
    aten.clamp.default: _clamp,
    aten.clamp_max.default: _clamp_max,
    aten.clamp_min.default: _clamp,
    aten.elu.default: _elu,
    aten.exp.default: _exp,
    aten.gelu.default: _gelu,
    aten.hardtanh.default: _hardtanh,
    aten.maximum.default: _maximum,
    aten.pow.Tensor_Scalar: _power,
    aten.minimum.default: _minimum,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}


def _check_attention(query: Any, key: Any, value: Any, dropout_p: float = 0.0, *_: Any, **named: Any) -> None:
    tensors = [each for each in (query, key, value, named.get("attn_mask")) if each is not None]
    if any(type(extent) is not int for each in tensors for extent in each.shape):
        raise NotFusible("its shapes are dynamic")
    if dropout_p or any(each.device.type != "cpu" for each in tensors):
        raise NotFusible("it has dropout, or another device than the CPU")


def _check_power(x: Any, exponent: Any) -> None:
    if exponent not in _POWERS:
        raise NotFusible(f"its exponent is {exponent}")


_CHECKS: dict[Any, Callable[..., None]] = {
    aten.max_pool2d_with_indices.default: _check_max_pool,
    aten.max_pool3d_with_indices.default: _check_max_pool,
    aten.avg_pool2d.default: _check_avg_pool,
    aten.avg_pool3d.default: _check_avg_pool,
    aten.constant_pad_nd.default: _check_pad,
    aten.linalg_vector_norm.default: _check_vector_norm,
    aten.roll.default: _check_roll,
    aten._adaptive_avg_pool2d.default: _check_adaptive_avg_pool,
    aten.pow.Tensor_Scalar: _check_power,
    OPERATORS[ATTENTION]: _check_attention,
}
