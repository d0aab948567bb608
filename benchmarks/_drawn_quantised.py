"""Quantised linear layers that are drawn at random, against torch and against float64, each within a derived bound."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

#: Layers of a module, which is compiled once.
TOGETHER = 10
#: Rounded operations on an element behind the product: the product itself, its scales, the bias and the activation.
ROUNDINGS = 6.0
#: Quantised values of a row that may be the next whole number, since kernels multiply by a scale in another order.
TIES = 2.0
#: A number of 4 bits as it is stored, and what is subtracted from it.
LARGEST_INT4 = 15.0 + 8.0
ROUNDOFFS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
#: The steepest slope of each activation.
SLOPES = {"none": 1.0, "relu": 1.0, "silu": 1.1, "gelu": 1.13}


@dataclass(frozen=True)
class Layer:
    """A layer with its input, and what torch and float64 make of it, with the bound on the difference from each."""

    text: str
    module: Any
    x: Any
    eager: Any
    exact: Any
    off_eager: Any
    off_exact: Any


def check_drawn(count: int, seed: int) -> tuple[float, float, list[str]]:
    """The largest differences from torch and from float64, in units of their bounds, and the layers beyond a bound."""
    import torch

    from dispatch_profiler.boo.backends import backend
    from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

    warnings.simplefilter("ignore")
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    worst, wrong = [0.0, 0.0], list[str]()
    for first in range(0, count, TOGETHER):
        freezes = (first // TOGETHER) % 2 == 1
        layers = [_drawn(drawn) for _ in range(min(TOGETHER, count - first))]
        modules = torch.nn.ModuleList([each.module for each in layers])

        def every(*inputs: Any, modules: Any = modules) -> tuple[Any, ...]:
            return tuple(module(x) for module, x in zip(modules, inputs, strict=True))

        torch._dynamo.reset()
        strict = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True, freeze=freezes)
        with torch.no_grad():
            found = torch.compile(every, backend=strict, dynamic=False)(*(each.x for each in layers))
        for layer, result in zip(layers, found, strict=True):
            # torch multiplies by scales after the product, which may overflow in f16.
            off = ((result.double() - layer.eager.double()).abs() / layer.off_eager)[layer.eager.isfinite()]
            of_eager = float(off.max()) if off.numel() else 0.0
            of_exact = float(((result.double() - layer.exact).abs() / layer.off_exact).max())
            worst = [max(worst[0], of_eager), max(worst[1], of_exact)]
            if not (of_eager <= 1.0 and of_exact <= 1.0):
                wrong.append(f"{layer.text}{', frozen' if freezes else ''}: {of_eager:.2f}, {of_exact:.2f}")
        print(
            f"{first + len(layers)} layers, at most {worst[0]:.2f} and {worst[1]:.2f} of the bounds",
            flush=True,
        )
    return worst[0], worst[1], wrong


def _drawn(drawn: random.Random) -> Layer:
    import torch
    import torchao.quantization as ao
    from torch import nn

    from benchmarks.quantised import KINDS, configuration

    kind, name = drawn.choice(tuple(KINDS)), drawn.choice(tuple(ROUNDOFFS))
    rows = drawn.choice((1, 2, 3, 4, 7, 16, 17, 33, 64, drawn.randint(1, 200)))
    k, n = (16 * drawn.randint(2, 40) for _ in range(2))
    group = drawn.choice((32, 64, 128))
    if kind == "int4":
        k, n = group * -(-k // group), 64 * -(-n // 64)
    activation, has_bias = drawn.choice(tuple(SLOPES)), drawn.random() < 0.6
    dtype = getattr(torch, name)
    linear = nn.Linear(k, n, bias=has_bias).eval().to(dtype)
    after = {"none": nn.Identity, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}[activation]()
    module = nn.Sequential(linear, after)
    ao.quantize_(module, configuration(kind, group))
    shape = (rows, k) if drawn.random() < 0.7 else (1, rows, k)
    x = torch.randn(shape, dtype=dtype) * drawn.choice((0.1, 1.0, 20.0))
    text = f"{kind}, {name}, {shape} to {n}, {activation}{', bias' if has_bias else ''}"
    with torch.no_grad():
        eager = module(x)
        weight, of_weight = _int4_weight(linear.weight) if kind == "int4" else _weight(linear.weight)
        bias = linear.bias.double() if has_bias else torch.zeros(n, dtype=torch.float64)
        wide = x.double()
        product, magnitude = wide @ weight.T, wide.abs() @ of_weight.T
        exact = after.double()(product + bias)
    roundoff, single = ROUNDOFFS[name], ROUNDOFFS["float32"]
    # Of sums in f32, and of what is rounded to the type; weights are dequantised in the type, too.
    off = (k + 8) * single * magnitude + roundoff * magnitude
    off = off + ROUNDINGS * roundoff * (product.abs() + bias.abs() + exact.abs())
    off_eager = 2.0 * off
    if kind == "dynamic":
        step = wide.abs().amax(-1, keepdim=True) / 127.5
        off_eager = off_eager + TIES * step * weight.abs().amax(-1)
        off = off + (0.5 + 128.0 * roundoff) * step * weight.abs().sum(-1)
    slope, smallest = SLOPES[activation], 1e-30 if name != "float16" else 6e-8
    return Layer(text, module, x, eager, exact, slope * off_eager + smallest, slope * off + smallest)


def _weight(quantised: Any) -> tuple[Any, Any]:
    """A weight in float64, and the magnitudes of what its elements are computed from."""
    weight = quantised.dequantize().double()
    return weight, weight.abs()


def _int4_weight(quantised: Any) -> tuple[Any, Any]:
    """The same of a weight of 4-bit numbers, which torch unpacks in f32: it multiplies the identity by it."""
    import torch

    terms, group = quantised.shape[1], quantised.block_size[1]
    scales = quantised.scale_and_zero.float()
    unpacked = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(terms), quantised.qdata, group, scales)
    scale, zero = scales.double().abs().repeat_interleave(group, 0).unbind(-1)
    return unpacked.T.double(), (LARGEST_INT4 * scale + zero).T
