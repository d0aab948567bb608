"""Products with weights of 4-bit numbers that torch has packed: regions of compiled models, and their kernels."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph

from dispatch_profiler.boo.backends.graph_compiler import backend
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.roots import int4_matmul
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS, FusionSchema
from dispatch_profiler.operations import Int4Matmul
from dispatch_profiler.operations.contraction.int4_matmul import packed, unpacked

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
aten: Any = torch.ops.aten
_pack: Any = aten._convert_weight_to_int4pack_for_cpu.default
_multiply: Any = aten._weight_int4pack_mm_for_cpu.default
packs_so = pytest.mark.skipif(
    not int4_matmul.packs_as_expected(), reason="torch packs 4-bit weights otherwise on this CPU"
)
ROUNDOFFS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class Int4Linear(torch.nn.Module):
    """As torchao's weight-only layers for CPUs, with drawn weights."""

    def __init__(self, k: int, n: int, group: int, dtype: torch.dtype, bias: bool = False) -> None:
        super().__init__()
        self.numbers = torch.randint(0, 16, (n, k), dtype=torch.int32)
        self.register_buffer("weight", _pack(self.numbers, 1))
        scales = torch.stack([torch.rand(k // group, n) / 50, torch.randn(k // group, n) / 100], -1)
        self.register_buffer("scales", scales.to(dtype))
        self.register_buffer("bias", torch.randn(n, dtype=dtype) if bias else None)
        self.group = group

    def forward(self, x: Any) -> Any:
        y = _multiply(x.reshape(-1, x.shape[-1]).contiguous(), self.weight, self.group, self.scales)
        y = y.reshape(*x.shape[:-1], y.shape[-1])
        return y if self.bias is None else y + self.bias

    def exactly(self, x: Any) -> tuple[Any, Any]:
        """The results in float64, and a bound on the error of sums in f32 that are rounded once."""
        scale, zero = self.scales.double().repeat_interleave(self.group, 0).unbind(-1)
        stored = self.numbers.T.double()
        weight, wide = (stored - 8) * scale + zero, x.double()
        y = wide @ weight
        magnitudes = wide.abs() @ ((stored + 8) * scale.abs() + zero.abs())
        bound = (x.shape[-1] + 8) * 2.0**-24 * magnitudes + ROUNDOFFS[x.dtype] * y.abs()
        return y, 1.01 * bound + torch.finfo(x.dtype).tiny


@packs_so
def test_the_weight_is_read_as_it_is_stored() -> None:
    layer = Int4Linear(64, 128, 32, torch.bfloat16)
    graph = inference_graph(layer, torch.randn(2, 3, 64, dtype=torch.bfloat16)).graph
    (region,) = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)[0]
    assert region.spec.operation == Int4Matmul(6, 128, 64, 32, "bf16")
    assert [each.op for each in region.inputs] == ["placeholder"] * 3
    assert [each.reading for each in region.spec.sources] == ["rows", "bytes", "rows"]


@packs_so
@pytest.mark.parametrize(("n", "group"), [(48, 32), (96, 32)])
def test_widths_that_torch_stores_otherwise_are_left_to_it(n: int, group: int) -> None:
    graph = inference_graph(Int4Linear(64, n, group, torch.float32), torch.randn(3, 64)).graph
    regions, rejected = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    assert not [each for each in regions if each.root == "int4_product"]
    assert [each.reason for each in rejected] == [f"int4_matmul: {n} columns are not a multiple of 64"]


def test_another_order_of_weights_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4_matmul, "packs_as_expected", lambda: False)
    graph = inference_graph(Int4Linear(64, 64, 32, torch.float32), torch.randn(3, 64)).graph
    regions, (rejected,) = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    assert not regions
    assert rejected.reason == "torch packs weights of 4-bit numbers in another order on this CPU"


@packs_so
@pytest.mark.some(2)
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("dtype", list(ROUNDOFFS), ids=str)
def test_models_compute_what_float64_does(dtype: torch.dtype, freeze: bool, launched: list[str]) -> None:
    """Ten drawn layers: few rows and many, all groups."""
    drawn = random.Random(f"{dtype} {freeze}")
    torch.manual_seed(0)
    layers, inputs = [], []
    for rows in (1, 2, 3, 4, 5, 7, 16, 33, 64, 200):
        group = drawn.choice((32, 64, 128))
        k, n = group * drawn.randint(1, 512 // group), 64 * drawn.randint(1, 6)
        layers.append(Int4Linear(k, n, group, dtype).eval())
        inputs.append(torch.randn(rows, k, dtype=dtype) * drawn.choice((0.1, 1.0, 10.0)))
    modules = torch.nn.ModuleList(layers)

    def every(*given: Any) -> list[Any]:
        return [module(x) for module, x in zip(modules, given, strict=True)]

    with torch.no_grad():
        found = torch.compile(every, backend=backend(strict=True, freeze=freeze), dynamic=False)(*inputs)
        for result, layer, x in zip(found, layers, inputs, strict=True):
            exact, bound = layer.exactly(x)
            assert result.dtype == dtype
            assert float(((result.double() - exact).abs() / bound).max()) <= 1.0
    assert len([name for name in launched if name.startswith("int4_matmul")]) == len(layers)


@packs_so
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_elements_beside_large_ones_are_as_precise_as_a_sum_of_both(dtype: torch.dtype) -> None:
    """Kernels may multiply elements as multiples of 2^-14 of the largest in their group; a group of zeros has no largest."""
    torch.manual_seed(1)
    layer, x = Int4Linear(128, 64, 32, dtype).eval(), torch.randn(4, 128)
    x[0, 5] = x[1, 40] = 2000.0
    x[2, 64:96] = 0.0
    x[3] *= 2.0**-10
    x = x.to(dtype)
    with torch.no_grad():
        found = torch.compile(layer, backend=backend(strict=True), dynamic=False)(x).double()
    exact, bound = layer.exactly(x)
    largest = x.double().abs().unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)
    scale = layer.scales[..., 0].double().repeat_interleave(32, 0)
    bound += largest @ (layer.numbers.T * scale) * 2.0**-14
    assert float(((found - exact).abs() / bound).max()) <= 1.0


@packs_so
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_is_no_number_makes_its_row_none(number: float) -> None:
    layer, x = Int4Linear(64, 64, 32, torch.bfloat16).eval(), torch.randn(2, 64).bfloat16()
    x[1, 40] = number
    with torch.no_grad():
        found = torch.compile(layer, backend=backend(strict=True), dynamic=False)(x)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


@packs_so
def test_weights_that_change_are_read_again_unless_they_are_frozen() -> None:
    x = torch.randn(2, 64)
    for freeze in (False, True):
        layer = Int4Linear(64, 64, 32, torch.float32).eval()
        compiled = torch.compile(layer, backend=backend(strict=True, freeze=freeze), dynamic=False)
        with torch.no_grad():
            before = compiled(x)
            layer.weight.bitwise_not_()
            after = compiled(x)
            expected = before if freeze else layer(x)
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)
        assert freeze or not torch.allclose(before, after)


@pytest.mark.slow
def test_inductor_has_such_products_in_its_cache() -> None:
    """Beside us, too: it must not load constants as fake tensors."""
    layer, x = Int4Linear(64, 64, 32, torch.float32).eval(), torch.randn(4, 64)
    alone = backend("inductor", FusionSchema())
    with torch.no_grad():
        for given in ("inductor", alone):
            torch._dynamo.reset()
            found = torch.compile(layer, backend=given, dynamic=False)(x)
            torch.testing.assert_close(found, layer(x), rtol=1e-5, atol=1e-5)


def test_packing_is_undone() -> None:
    numbers = np.random.default_rng(0).integers(-8, 8, (24, 192))
    np.testing.assert_array_equal(unpacked(packed(numbers)), numbers)
