"""Layers of `torch.nn.TransformerEncoder` in inference, which torch has as one operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from dispatch_profiler import capture
from dispatch_profiler.boo.backends.graph_compiler import backend
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


def encoder(layers: int = 1, **options: Any) -> nn.Module:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    for each in layer.parameters():
        nn.init.normal_(each, std=0.3)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def test_a_layer_is_products_norms_and_attention() -> None:
    captured = capture(encoder(2), X, fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
    kinds = Counter[str]()
    for each in captured.workload.entries:
        kinds[each.operation.kind] += each.count
    assert kinds == {"matmul": 8, "layer_norm": 4, "attention": 2}


@pytest.mark.some(2)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_compiled_layers_compute_what_torch_does(activation: str, norm_first: bool) -> None:
    model = encoder(activation=activation, norm_first=norm_first)
    compiled: Any = torch.compile(
        model, backend=backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS), dynamic=False
    )
    with torch.no_grad():
        found, eager = compiled(X), model(X)
        expected = model.double()(X.double())
    error = (found.double() - expected).abs().max()
    assert error <= 4 * (eager.double() - expected).abs().max() + 1e-6


def test_a_masked_layer_is_left_to_torch() -> None:
    """Its mask may be of several kinds."""
    model, mask = encoder().layers[0], torch.zeros(2, 9, dtype=torch.bool)
    mask[1, 5:] = True
    compiled: Any = torch.compile(
        lambda x: model(x, src_key_padding_mask=mask), backend=backend(), dynamic=False
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(X)[0], model(X, src_key_padding_mask=mask)[0])
