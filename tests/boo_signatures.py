"""Random signatures, and what torch computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from dispatch_profiler.boo.op_exports import Mode, OpSignature
from dispatch_profiler.boo.op_exports.attention import AttentionSignature
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.boo.op_exports.layer_norm import LayerNormSignature
from dispatch_profiler.boo.op_exports.softmax import SoftmaxSignature
from dispatch_profiler.errors import OperationError

LETTERS = {1: "NCH", 2: "NCHW", 3: "NCDHW"}
FORWARD_CONV = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED_CONV = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def is_valid(signature: OpSignature) -> bool:
    """Whether there is such an operation."""
    try:
        return signature.operation is not None
    except OperationError:
        return False


@st.composite
def conv_signatures(draw: st.DrawFn, dtype: str = "f64") -> ConvSignature:
    """Convolutions of any rank, layout, mode, group and option, with few pixels."""
    rank = draw(st.integers(1, 3))
    letters = LETTERS[rank]
    input_, kernel, output = (draw(st.permutations(letters)) for _ in range(3))
    groups, small = draw(st.integers(1, 3)), st.integers(1, 3)
    transposed = draw(st.booleans())
    inputs, outputs = groups * draw(small), groups * draw(small)
    per_axis = st.lists(small, min_size=rank, max_size=rank)
    pixels = draw(st.lists(st.integers(3, 7), min_size=rank, max_size=rank))
    x = {"N": draw(small), "C": inputs, **dict(zip(letters[2:], pixels, strict=True))}
    outer, inner = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    w = {"N": outer, "C": inner, **dict(zip(letters[2:], draw(per_axis), strict=True))}
    stride = draw(per_axis)
    return ConvSignature(
        input_shape=[x[letter] for letter in input_],
        kernel_shape=[w[letter] for letter in kernel],
        input_layout="".join(input_),
        kernel_layout="".join(kernel),
        output_layout="".join(output),
        bias=draw(st.booleans()),
        dtype=dtype,
        stride=stride,
        padding=draw(st.lists(st.integers(0, 1), min_size=rank, max_size=rank)),
        dilation=draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)),
        transposed=transposed,
        output_padding=[draw(st.integers(0, each - 1)) for each in stride] if transposed else 0,
        groups=groups,
        mode=draw(st.sampled_from(Mode)),
    )


@st.composite
def gemm_signatures(draw: st.DrawFn, dtype: str = "f64") -> GEMMSignature:
    """Products with few rows and columns."""
    m, n, k = (draw(st.integers(1, 9)) for _ in range(3))
    modes = [Mode.FORWARD, Mode.INPUT_BACKWARD, Mode.WEIGHT_BACKWARD]
    return GEMMSignature(
        a_shape=(m, k),
        b_shape=(k, n),
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        dtype=dtype,
        mode=draw(st.sampled_from(modes)),
    )


@st.composite
def layer_norm_signatures(draw: st.DrawFn, dtype: str = "f64") -> LayerNormSignature:
    """Layer norms of up to four axes."""
    shape = draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    normalized = draw(st.integers(1, len(shape) - 1))
    mode = draw(st.sampled_from(Mode))
    needed = {Mode.WEIGHT_BACKWARD: "weight", Mode.BIAS_BACKWARD: "bias"}.get(mode, "")
    return LayerNormSignature(
        input_shape=shape,
        normalized_shape=shape[-normalized:],
        eps=draw(st.sampled_from((1e-5, 1e-3, 1.0))),
        elementwise_affine=needed == "weight" or draw(st.booleans()),
        bias=needed == "bias" or draw(st.booleans()),
        dtype=dtype,
        mode=mode,
    )


@st.composite
def softmax_signatures(draw: st.DrawFn, dtype: str = "f64") -> SoftmaxSignature:
    """Softmax of up to four axes, scaled or not."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return SoftmaxSignature(input_shape=shape, scale=draw(st.sampled_from((1.0, 0.125, 3.0))), dtype=dtype)


@st.composite
def attention_signatures(draw: st.DrawFn, dtype: str = "f64") -> AttentionSignature:
    """Attention of few heads, with fewer key heads, masks, a scale of its own, and causal."""
    small = st.integers(1, 3)
    batch, key_heads, shared, queries, keys, size, value_size = (draw(small) for _ in range(7))
    scores = (batch, key_heads * shared, queries, keys)
    mask = None
    if draw(st.booleans()):
        mask = (*(draw(st.sampled_from((1, extent))) for extent in scores[:3]), keys)
    return AttentionSignature(
        query_shape=(*scores[:3], size),
        key_shape=(batch, key_heads, keys, size),
        value_shape=(batch, key_heads, keys, value_size),
        mask_shape=mask,
        mask_dtype=draw(st.sampled_from(("bool", dtype))),
        is_causal=draw(st.booleans()) if mask is None else False,
        scale=draw(st.sampled_from((None, 0.25))),
        dtype=dtype,
        layout=draw(st.sampled_from(("bhsd", "bshd"))),
    )


def _attention(signature: AttentionSignature, *arguments: torch.Tensor) -> torch.Tensor:
    query, key, value, *masks = arguments
    mask = masks[0] if masks else None
    if mask is not None and mask.dtype is torch.int8:
        mask = mask.bool()
    if signature.layout == "bshd":
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=signature.is_causal, scale=signature.scale, enable_gqa=True
    )
    return result.transpose(1, 2) if signature.layout == "bshd" else result


def signatures(dtype: str = "f64") -> st.SearchStrategy[OpSignature]:
    """Valid signatures of all kinds."""
    every = (
        conv_signatures(dtype),
        gemm_signatures(dtype),
        layer_norm_signatures(dtype),
        softmax_signatures(dtype),
        attention_signatures(dtype),
    )
    return st.one_of(*every).filter(is_valid)


def torch_results(signature: OpSignature, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results of a launch with `arguments`, by torch's functions and autograd."""
    computed: Any = {
        ConvSignature: _conv,
        GEMMSignature: _gemm,
        LayerNormSignature: _layer_norm,
        AttentionSignature: _attention,
        SoftmaxSignature: lambda signature, x: torch.softmax(signature.scale * x, -1),
    }[type(signature)]
    found = computed(signature, *arguments)
    return found if isinstance(found, tuple) else (found,)


def _conv(signature: ConvSignature, *arguments: torch.Tensor) -> torch.Tensor:
    rank = len(signature.input_shape) - 2
    letters = LETTERS[rank]

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        x = x.permute([signature.input_layout.index(letter) for letter in letters])
        w = w.permute([signature.kernel_layout.index(letter) for letter in letters])
        shared = {"stride": signature.stride, "padding": signature.padding, "dilation": signature.dilation}
        shared["groups"] = signature.groups
        if signature.transposed:
            y = TRANSPOSED_CONV[rank](x, w, b, output_padding=signature.output_padding, **shared)
        else:
            y = FORWARD_CONV[rank](x, w, b, **shared)
        return y.permute([letters.index(letter) for letter in signature.output_layout])

    if signature.mode is Mode.FORWARD:
        return forward(*arguments)
    dtype = arguments[0].dtype
    x = torch.zeros(signature.input_shape, dtype=dtype, requires_grad=True)
    w = torch.zeros(signature.kernel_shape, dtype=dtype, requires_grad=True)
    b = torch.zeros(
        signature.output_shape[signature.output_layout.index("C")], dtype=dtype, requires_grad=True
    )
    if signature.mode is Mode.INPUT_BACKWARD:
        w = arguments[1]
    if signature.mode is Mode.WEIGHT_BACKWARD:
        x = arguments[1]
    wanted = {Mode.INPUT_BACKWARD: x, Mode.WEIGHT_BACKWARD: w, Mode.BIAS_BACKWARD: b}[signature.mode]
    return torch.autograd.grad(forward(x, w, b), wanted, arguments[0])[0]


def _gemm(signature: GEMMSignature, *arguments: torch.Tensor) -> torch.Tensor:
    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.t() if signature.transpose_a else a) @ (b.t() if signature.transpose_b else b)

    if signature.mode is Mode.FORWARD:
        return forward(*arguments)
    gradient, other = arguments
    m, k = signature.a_shape
    n = signature.b_shape[1]
    is_a = signature.mode is Mode.INPUT_BACKWARD
    stored = (
        ((k, m) if signature.transpose_a else (m, k))
        if is_a
        else ((n, k) if signature.transpose_b else (k, n))
    )
    wanted = torch.zeros(stored, dtype=gradient.dtype, requires_grad=True)
    y = forward(wanted, other) if is_a else forward(other, wanted)
    return torch.autograd.grad(y, wanted, gradient)[0]


def _layer_norm(signature: LayerNormSignature, *arguments: torch.Tensor) -> Any:
    shape = list(signature.normalized_shape)
    if signature.mode is Mode.FORWARD:
        x, *given = arguments
        w = given.pop(0) if signature.elementwise_affine else None
        b = given.pop(0) if signature.bias else None
        return torch.native_layer_norm(x, shape, w, b, signature.eps)
    gradient, *rest = arguments
    if signature.mode is Mode.BIAS_BACKWARD:
        return gradient.sum(tuple(range(gradient.dim() - len(shape))))
    x, *rest = rest
    w = rest.pop(0) if signature.mode is Mode.INPUT_BACKWARD and signature.elementwise_affine else None
    if signature.mode is Mode.WEIGHT_BACKWARD:
        w = torch.ones(shape, dtype=x.dtype)
    mean, rstd = rest
    is_weight = signature.mode is Mode.WEIGHT_BACKWARD
    wants = [signature.mode is Mode.INPUT_BACKWARD, is_weight, is_weight and signature.bias]
    bias = None if w is None else torch.zeros_like(w)
    found = torch.ops.aten.native_layer_norm_backward(gradient, x, shape, mean, rstd, w, bias, wants)
    return tuple(each for each in found if each is not None)
