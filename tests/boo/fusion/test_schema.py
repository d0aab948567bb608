"""What becomes a region: tables of graphs, and what each rule makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch.nn import functional

from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.schema import (
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
    FusionRule,
    FusionSchema,
)
from dispatch_profiler.errors import UsageError

X, W, B, V = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), torch.randn(4), torch.rand(4) + 0.5
ROWS, SQUARE, COLUMNS = torch.randn(3, 5, 8), torch.randn(8, 8), torch.randn(8)


def conv(x: Any) -> Any:
    return functional.conv2d(x, W, B, padding=1)


def norm(x: Any, *, training: bool = False, affine: bool = True) -> Any:
    scale = (B, V) if affine else (None, None)
    return functional.batch_norm(x, B.clone(), V.clone(), *scale, training=training)


def epilogues(function: Callable[..., Any], *inputs: Any, schema: FusionSchema | None = None) -> list[str]:
    """The epilogue of each region, in the order of the graph."""
    graph = inference_graph(function, *inputs).graph
    regions, _ = find_regions(graph, schema or BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    return [str(region.spec.operation.as_contraction().epilogue) for region in regions]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (conv, ["bias"]),
        (lambda x: functional.conv2d(x, W), ["none"]),
        (lambda x: functional.relu(conv(x)), ["bias+relu"]),
        (lambda x: functional.relu(norm(conv(x))), ["bias+scale_shift+relu"]),
        (lambda x: norm(conv(x), affine=False), ["bias+scale_shift"]),
        (lambda x: functional.relu(norm(conv(x)) + x), ["bias+scale_shift+residual+relu"]),
        (lambda x: x + conv(x), ["bias+residual"]),
        (lambda x: functional.relu6(conv(x)), ["bias+relu6"]),
        (lambda x: conv(x).clamp(-1, 2), ["bias+clamp(-1,2)"]),
        (lambda x: conv(x).clamp(min=0), ["bias+relu"]),
        (lambda x: functional.hardtanh(conv(x)), ["bias+clamp(-1,1)"]),
        (lambda x: functional.leaky_relu(conv(x), 0.2), ["bias+leaky_relu(0.2)"]),
        (lambda x: functional.gelu(conv(x)), ["bias+gelu"]),
        (lambda x: functional.gelu(conv(x), approximate="tanh"), ["bias+gelu_tanh"]),
        (lambda x: functional.silu(conv(x)), ["bias+silu"]),
        (lambda x: functional.hardswish(norm(conv(x))), ["bias+scale_shift+hardswish"]),
        (lambda x: functional.hardsigmoid(conv(x)), ["bias+hardsigmoid"]),
        # Activations that are written out.
        (lambda x: (lambda y: y * y.sigmoid())(norm(conv(x))), ["bias+scale_shift+silu"]),
        (lambda x: (lambda y: y.sigmoid() * y)(conv(x)).relu(), ["bias+silu+relu"]),
        (lambda x: (lambda y: y * functional.hardsigmoid(y))(conv(x)), ["bias+hardswish"]),
        (lambda x: conv(x).sigmoid() * x, ["bias+sigmoid"]),
        (lambda x: conv(x).sigmoid().tanh(), ["bias+sigmoid+tanh"]),
        (lambda x: functional.relu_(conv(x)), ["bias+relu"]),
        # Two convolutions that are added: one of them has the sum, once the other is complete.
        (lambda x: conv(x) + functional.conv2d(x, W, padding=1), ["bias+residual", "none"]),
        # A result that is needed elsewhere ends the region.
        (lambda x: (lambda y: y + y.exp())(conv(x)), ["bias"]),
        (lambda x: (lambda y: (functional.relu(y), y))(conv(x)), ["bias"]),
        (lambda x: (lambda y: y + y)(conv(x)), ["bias"]),
        (lambda x: (lambda y: y * y.tanh())(conv(x)), ["bias"]),
        (lambda x: (lambda y: y + y.sigmoid())(conv(x)), ["bias"]),
        (lambda x: (lambda y: (y * y.sigmoid(), y))(conv(x)), ["bias"]),
        (lambda x: (lambda y: (lambda gate: (y * gate, gate))(y.sigmoid()))(conv(x)), ["bias"]),
        (lambda x: (lambda y: y.sigmoid().square() * y)(conv(x)), ["bias"]),
        # What is not the step that it looks like.
        (lambda x: torch.add(conv(x), x, alpha=2), ["bias"]),
        (lambda x: conv(x) + B[:, None, None], ["bias"]),
        (lambda x: conv(x) + 1, ["bias"]),
        (lambda x: norm(conv(x), training=True), ["bias"]),
        (lambda x: functional.leaky_relu(conv(x), -0.1), ["bias"]),
        (lambda x: conv(x).clamp(max=1), ["bias"]),
        (lambda x: functional.mish(conv(x)), ["bias"]),
        (lambda x: conv(x).double().relu(), ["bias"]),
        # Nothing to begin with.
        (lambda x: functional.relu(x), []),  # torch 2.6 compiles no function of its own
        (lambda x: functional.conv2d(x[0], W), ["none"]),
        (lambda x: functional.conv2d(x[:0], W), []),
    ],
)
def test_a_convolution_takes_in_the_steps_that_follow_it(
    function: Callable[..., Any], expected: list[str]
) -> None:
    assert epilogues(function, X) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: functional.linear(x, SQUARE, COLUMNS), ["bias"]),
        (lambda x: functional.gelu(functional.linear(x, SQUARE, COLUMNS)), ["bias+gelu"]),
        (lambda x: x + functional.linear(x, SQUARE, COLUMNS), ["bias+residual"]),
        (lambda x: x[0] @ SQUARE, ["none"]),
        (lambda x: torch.relu(torch.bmm(x, x.transpose(1, 2))), ["relu"]),
        (lambda x: torch.addmm(COLUMNS, x[0], SQUARE, beta=2), []),
        (lambda x: torch.addmm(x[1], x[0], SQUARE), []),
        # The rows are regrouped between the steps, but not the columns.
        (lambda x: functional.linear(x, SQUARE).view(15, 8).relu(), ["relu"]),
        (lambda x: functional.linear(x, SQUARE).view(15, 4, 2).relu(), ["none"]),
    ],
)
def test_a_matrix_product_takes_in_the_steps_that_follow_it(
    function: Callable[..., Any], expected: list[str]
) -> None:
    assert epilogues(function, ROWS) == expected
    assert epilogues(function, ROWS, schema=DEFAULT_SUPPORTED_BOO_FUSIONS) == []


@pytest.mark.parametrize(("transposed", "layout"), [(0, "t"), (1, "n"), (2, "t"), (3, "n")])
def test_a_product_reads_its_operands_as_they_are_stored(transposed: int, layout: str) -> None:
    """A backward transposes again what its forward has transposed."""

    def product(x: Any, weight: Any) -> Any:
        for _ in range(transposed):
            weight = weight.t()
        return x @ weight

    graph = inference_graph(product, ROWS[0], SQUARE).graph
    ((region,), _) = find_regions(graph, BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    assert region.spec.operation.product.rhs_layout == layout
    assert all(each.op == "placeholder" for each in region.inputs)


@pytest.mark.parametrize(
    ("function", "roots"),
    [
        (lambda x: functional.layer_norm(x, [8], COLUMNS, COLUMNS), ["layer_norm"]),
        (lambda x: functional.layer_norm(x, [5, 8]), ["layer_norm"]),
        (lambda x: functional.layer_norm(x, [8], COLUMNS), ["layer_norm"]),
        (lambda x: functional.layer_norm(x, [8], None, COLUMNS), ["layer_norm"]),
        (lambda x: functional.conv1d(x, torch.ones(2, 5, 3)), ["convolution"]),
        (lambda x: functional.conv_transpose1d(x, torch.ones(5, 2, 3)), ["transposed_convolution"]),
        (lambda x: functional.conv3d(x[None, None], torch.ones(2, 1, 1, 3, 3)), ["convolution"]),
    ],
)
def test_roots(function: Callable[..., Any], roots: list[str]) -> None:
    regions, _ = find_regions(inference_graph(function, ROWS).graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    assert [region.root for region in regions] == roots


def test_a_schema_decides_what_is_fused() -> None:
    def function(x: Any) -> Any:
        return functional.relu(functional.sigmoid(conv(x)))

    only_sigmoid = FusionSchema((FusionRule("convolution", frozenset(["bias", "sigmoid"])),))
    assert epilogues(function, X, schema=only_sigmoid) == ["bias+sigmoid"]
    assert epilogues(function, X, schema=FusionSchema((FusionRule("convolution"),))) == ["bias"]
    assert epilogues(function, X, schema=FusionSchema()) == []


def test_what_ends_a_region_is_known() -> None:
    graph = inference_graph(lambda x: torch.add(conv(x), x, alpha=2), X).graph
    ((region,), _) = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    assert "alpha" in region.stop
    graph = inference_graph(lambda x: functional.layer_norm(x.bfloat16(), [8], COLUMNS), ROWS).graph
    (_, (rejected,)) = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    assert "types differ" in rejected.reason


@pytest.mark.slow
def test_a_graph_with_dynamic_shapes_has_no_regions() -> None:
    graph = inference_graph(lambda x: functional.relu(x), X, dynamic=True).graph
    assert find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS) == ([], [])
    (_, (rejected, *_)) = find_regions(
        inference_graph(conv, X, dynamic=True).graph, DEFAULT_SUPPORTED_BOO_FUSIONS
    )
    assert "dynamic" in rejected.reason


def test_invalid_rules() -> None:
    with pytest.raises(UsageError, match="convolutoin"):
        FusionRule("convolutoin")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="relo"):
        FusionRule("convolution", frozenset(["relo"]))
    with pytest.raises(UsageError, match="no steps"):
        FusionRule("layer_norm", frozenset(["relu"]))
    with pytest.raises(UsageError, match="at most one rule"):
        FusionSchema((FusionRule("layer_norm"), FusionRule("layer_norm")))
