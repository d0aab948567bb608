"""Small modules that a code generator for CPUs must compile: products of each element type, and conversions."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.configurations import FLOWS

#: Element type -> type of the sums.
_SUMS = {"f32": "f32", "f16": "f32", "bf16": "f32", "f64": "f64", "i8": "i32", "i32": "i32"}
#: Conversions: the types that a value passes through, and the operations that convert it.
_CONVERSIONS = (
    ("truncf", "f32", "bf16"), ("extf", "bf16", "f32"), ("truncf", "f32", "f16"), ("extf", "f16", "f32"),
    ("extf", "f32", "f64"), ("truncf", "f64", "f32"), ("fptosi", "f32", "i8"), ("sitofp", "i8", "f32"),
)  # fmt: skip
_PRODUCT = """func.func @product_{type}(%x: tensor<16x16x{type}>, %y: tensor<16x16x{type}>, %z: tensor<16x16x{sum}>) -> tensor<16x16x{sum}> {{
  %r = linalg.matmul ins(%x, %y : tensor<16x16x{type}>, tensor<16x16x{type}>) outs(%z : tensor<16x16x{sum}>) -> tensor<16x16x{sum}>
  return %r : tensor<16x16x{sum}>
}}
"""
_CHAIN = """func.func @conversions(%x: tensor<64xf32>) -> tensor<64xf32> {{
  %e = tensor.empty() : tensor<64xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}} ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {{
  ^bb0(%v0: f32, %o: f32):
{steps}
    linalg.yield %v{last} : f32
  }} -> tensor<64xf32>
  return %r : tensor<64xf32>
}}
"""


@dataclass(frozen=True)
class Probe:
    """A module, and compiler flags in addition to the target's."""

    name: str
    source: str
    flags: tuple[str, ...] = ()


def _products(*types: str) -> str:
    return "".join(_PRODUCT.format(type=each, sum=_SUMS[each]) for each in types)


def _conversions() -> str:
    steps = (
        f"    %v{number + 1} = arith.{name} %v{number} : {before} to {after}"
        for number, (name, before, after) in enumerate(_CONVERSIONS)
    )
    return _CHAIN.format(steps="\n".join(steps), last=len(_CONVERSIONS))


def _probe(flow: str, *types: str) -> Probe:
    return Probe(f"{', '.join(types)} products with {flow}", _products(*types), FLOWS[flow].flags)


#: Each flow has its own rules for the available instructions.
PROBES = (
    Probe("products and conversions", _products(*_SUMS) + _conversions()),
    _probe("data_tiling", "f32", "f16", "bf16", "i8"),
    _probe("ukernels", "f32", "f16", "bf16", "i8"),
)
