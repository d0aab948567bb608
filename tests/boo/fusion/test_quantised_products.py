"""Products of i8, such as those of layers whose activations torchao quantises in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph

from dispatch_profiler import Matmul
from dispatch_profiler.boo.backends.graph_compiler import backend
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.fusion.simplifying import simplify
from dispatch_profiler.operations import ElementTypes, Epilogue

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
int_mm: Any = torch._int_mm  # type: ignore[attr-defined]
I8 = ElementTypes("i8", "i8", "i32")


def signed(q: Any, weight: Any) -> Any:
    """A product of i8 as it is; `weight` has a row for each result."""
    return int_mm(q, weight.t())


def unsigned(
    q: Any, weight: Any, *, added: int = 128, subtracted: int = 128, and_product: bool = False
) -> Any:
    """The same product as torchao computes it on CPUs, whose instructions multiply unsigned numbers by signed ones."""
    columns = weight.t()
    made = (q.to(torch.int32) + added).to(torch.uint8)
    product = int_mm(made, columns)
    corrected = product - columns.sum(0, keepdim=True, dtype=torch.int32) * subtracted
    return (corrected, product) if and_product else corrected


def quantised_linear(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A linear layer whose activations are quantised with a scale for each row."""

    def layer(x: Any, weight: Any, scales: Any, bias: Any) -> Any:
        scale = torch.clamp(x.abs().amax(1, keepdim=True) / 127.5, 1e-7)
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        return torch.nn.functional.silu(product(q, weight).to(x.dtype) * scale * scales + bias)

    return layer


def tensors(rows: int, outputs: int = 24, terms: int = 40) -> list[Any]:
    torch.manual_seed(5)
    weight = torch.randint(-128, 128, (outputs, terms), dtype=torch.int8)
    return [torch.randn(rows, terms), weight, torch.rand(outputs) / 100, torch.randn(outputs)]


def found(function: Callable[..., Any], *inputs: Any) -> tuple[list[Matmul], list[str]]:
    """The operations of regions, and why other products have none."""
    regions, rejected = find_regions(
        inference_graph(function, *inputs).graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS
    )
    return [each.spec.operation for each in regions], [each.reason for each in rejected]


@pytest.mark.parametrize("product", [signed, unsigned])
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_a_product_of_i8_is_a_region(product: Callable[[Any, Any], Any], rows: int) -> None:
    types, epilogue = ElementTypes("i8", "i8", "f32"), Epilogue.parse("row_scale+channel_scale+bias+silu")
    expected = Matmul(rows, 24, 40, types, "t", "n", epilogue)
    assert found(quantised_linear(product), *tensors(rows)) == ([expected], [])


@pytest.mark.parametrize("product", [signed, unsigned])
def test_sums_that_are_not_converted_stay_integers(product: Callable[[Any, Any], Any]) -> None:
    q, weight = tensors(3)[0].to(torch.int8), tensors(3)[1]
    assert found(product, q, weight) == ([Matmul(3, 24, 40, I8, "t", "n")], [])
    assert found(lambda q, w: product(q, w).to(torch.bfloat16), q, weight)[0] == [
        Matmul(3, 24, 40, I8, "t", "n")
    ]


def test_rows_and_columns_of_several_axes_have_scales() -> None:
    x, weight, scales, _ = tensors(6)

    def layer(x: Any, rows: Any) -> Any:
        sums = int_mm(x.reshape(6, 40).to(torch.int8), weight.t()).float().view(2, 3, 24)
        return sums * rows * scales

    (operation,), _ = found(layer, x.view(2, 3, 40), torch.rand(2, 3, 1))
    assert str(operation.epilogue) == "row_scale+channel_scale"


def test_a_weight_in_the_other_layout_is_read_as_it_is_stored() -> None:
    x, weight, *_ = tensors(3)
    q = x.to(torch.int8)
    assert found(int_mm, q, weight.t().contiguous())[0] == [Matmul(3, 24, 40, I8, "t", "t")]


@pytest.mark.parametrize(
    "product",
    [
        lambda q, w: unsigned(q, w, added=127),
        lambda q, w: unsigned(q, w, subtracted=127),
        lambda q, w: int_mm((q.to(torch.int32) + 128).to(torch.uint8), w.t()),
        lambda q, w: unsigned(q, w, and_product=True),
        lambda q, w: (
            int_mm((q.to(torch.int32) + 128).to(torch.uint8), w.t())
            - 128 * (w + 1).t().sum(0, keepdim=True, dtype=torch.int32)
        ),
    ],
    ids=["added", "subtracted", "not corrected", "read twice", "of another weight"],
)
def test_other_products_of_unsigned_numbers_are_left_to_torch(product: Callable[[Any, Any], Any]) -> None:
    q, weight = tensors(3)[0].to(torch.int8), tensors(3)[1]
    operations, reasons = found(product, q, weight)
    assert operations == []
    assert set(reasons) == {"it multiplies unsigned numbers"}


def quantised(x: Any) -> tuple[Any, Any]:
    """Rows in i8 and their scales, as torchao computes both, with a zero point of 0."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    low, high = torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))
    scale = torch.clamp(torch.maximum(-low, high) / 127.5, 1.1920928955078125e-07)
    zero_point = torch.full_like(scale, 0).to(torch.int8)
    rounded = torch.round(x * (scale.reciprocal() * 1.0)) + zero_point
    return torch.clamp(rounded, -128, 127).to(torch.int8), scale


def two_layers(x: Any, weight: Any, scales: Any) -> Any:
    for _ in range(2):
        q, scale = quantised(x)
        x = torch.nn.functional.silu(unsigned(q, weight).to(x.dtype) * scale * scales)
    return x


def test_quantising_is_a_program_so_that_layers_are_one_run() -> None:
    torch.manual_seed(6)
    inputs = torch.randn(7, 40), torch.randint(-128, 128, (40, 40), dtype=torch.int8), torch.rand(40) / 100
    graph = inference_graph(two_layers, *inputs).graph
    simplify(graph)
    graph.eliminate_dead_code()
    regions, _ = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    programs = find_glue(graph, regions)
    assert len(regions) == len(programs) == 2
    for each in programs:
        assert sorted(output.type for output in each.spec.operation.outputs) == ["f32", "i8"]
    compiled: Any = torch.compile(
        two_layers, backend=backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS), dynamic=False
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), two_layers(*inputs), rtol=1e-5, atol=1e-5)


def test_numbers_outside_of_i8_are_converted_by_torch() -> None:
    """What torch does with them depends on the CPU."""

    def function(x: Any, weight: Any) -> Any:
        return signed((x * 2).to(torch.int8), weight), signed(
            torch.clamp(x, -200, 200).to(torch.int8), weight
        )

    x, weight, *_ = tensors(4)
    graph = inference_graph(function, x, weight).graph
    regions, _ = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    assert len(regions) == 2
    assert find_glue(graph, regions) == []


@pytest.mark.some(4)
@pytest.mark.parametrize("product", [signed, unsigned])
@pytest.mark.parametrize(("rows", "outputs", "terms"), [(1, 24, 40), (19, 70, 132), (5, 9, 30)])
@pytest.mark.parametrize("freeze", [False, True], ids=["live", "frozen"])
def test_compiled_layers_compute_what_torch_does(
    product: Callable[[Any, Any], Any], rows: int, outputs: int, terms: int, freeze: bool
) -> None:
    class Layer(torch.nn.Module):
        def __init__(self, weight: Any, scales: Any, bias: Any) -> None:
            super().__init__()
            self.weight, self.scales, self.bias = (
                torch.nn.Parameter(each, requires_grad=False) for each in (weight, scales, bias)
            )

        def forward(self, x: Any) -> Any:
            return quantised_linear(product)(x, self.weight, self.scales, self.bias)

    x, *parameters = tensors(rows, outputs, terms)
    model = Layer(*parameters)
    compiled: Any = torch.compile(
        model, backend=backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, freeze=freeze), dynamic=False
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-5)
