"""Linear layers whose weights are stored as i8, as those of torchao: products of few rows read the weight as it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph

from dispatch_profiler import Matmul
from dispatch_profiler.boo.backends.graph_compiler import backend
from dispatch_profiler.boo.fusion.match.matching import Region, find_regions
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.operations import ElementTypes, Epilogue

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
functional: Any = torch.nn.functional


def linear(x: Any, weight: Any, scale: Any, bias: Any = None) -> Any:
    """As torchao's weight-only layers compute it, with a scale for each output."""
    result = (x @ weight.t().to(x.dtype)) * scale.view(-1)
    return result if bias is None else result + bias


def tensors(rows: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    torch.manual_seed(3)
    weight = torch.randint(-128, 128, (24, 40), dtype=torch.int8)
    return [
        torch.randn(rows, 40, dtype=dtype),
        weight,
        torch.rand(24, 1, dtype=dtype) / 100,
        torch.randn(24, dtype=dtype),
    ]


def regions_of(function: Callable[..., Any], *inputs: Any) -> list[Region]:
    return find_regions(inference_graph(function, *inputs).graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)[0]


def test_the_weight_is_read_as_it_is_stored() -> None:
    (region,) = regions_of(lambda *given: functional.gelu(linear(*given)), *tensors(4))
    types, epilogue = ElementTypes("f32", "i8", "f32"), Epilogue.parse("channel_scale+bias+gelu")
    assert region.spec.operation == Matmul(4, 24, 40, types, "t", "n", epilogue)
    assert [value.op for value in region.inputs] == ["placeholder"] * 4


def test_many_rows_are_multiplied_in_the_type_of_the_activations() -> None:
    (region,) = regions_of(linear, *tensors(40))
    assert region.spec.operation == Matmul(40, 24, 40, epilogue=Epilogue.parse("channel_scale+bias"))


def test_a_weight_that_is_stored_transposed_is_converted_first() -> None:
    x, weight, scale, _ = tensors(2)
    (region,) = regions_of(
        lambda x, w, scale: (x @ w.to(x.dtype)) * scale.view(-1), x, weight.t().contiguous(), scale
    )
    assert region.spec.operation.types == ElementTypes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 5])
def test_compiled_layers_compute_what_torch_does(dtype: torch.dtype, rows: int) -> None:
    def model(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
        return functional.silu(linear(x, weight, scale, bias))

    given = tensors(rows, dtype)
    compiled: Any = torch.compile(
        model, backend=backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS), dynamic=False
    )
    with torch.no_grad():
        found = compiled(*given)
        expected = model(*(each.double() if each.is_floating_point() else each for each in given))
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2
    )
