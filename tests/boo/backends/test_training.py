"""Gradients of compiled models agree with eager torch, with torch's kernels and with ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import Block
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dispatch_profiler.boo.backends import backend, graph_compiler, region_kernels
from dispatch_profiler.boo.fusion.schema import (
    BACKWARD_FUSIONS,
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
)

#: Of torch's own modules, when inductor is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def step(model: Callable[..., Any], parameters: Any, x: Any) -> list[Any]:
    """The output, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(each.grad for each in parameters)]


def check_step(model: nn.Module, made: Any, x: Any) -> None:
    """One training step, compiled and not; running statistics, too."""
    torch._dynamo.reset()
    other = copy.deepcopy(model)
    found = step(torch.compile(model, backend=made, dynamic=False), list(model.parameters()), x)
    expected = step(other, list(other.parameters()), x)
    for one, two in zip((*found, *model.buffers()), (*expected, *other.buffers()), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


MODELS = {
    "block": (Block, (2, 8, 6, 6)),
    "stride": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Tanh()), (2, 3, 8, 8)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU()), (2, 3, 8)),
    "layer norm without a bias": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16, bias=False), nn.GELU()),
        (2, 3, 8),
    ),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        (2, 3, 6, 6),
    ),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 5, 5)),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.SiLU(),
            nn.ConvTranspose2d(6, 2, (1, 3), dilation=2, bias=False),
        ),
        (2, 4, 5, 6),
    ),
}
#: Every gradient that kernels express, however fast they are.
ALL_GRADIENTS = DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS)


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("flattened", True),
        *(pytest.param("layer norm", each, marks=pytest.mark.slow) for each in (True, False)),
        *(pytest.param("block", each, marks=pytest.mark.slow) for each in (True, False)),
        pytest.param("flattened", False, marks=pytest.mark.slow),
    ],
)
def test_a_training_step(name: str, training: bool) -> None:
    make, shape = MODELS[name]
    check_step(
        make().train(training), backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS), torch.randn(*shape)
    )


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name",
    [
        "stride",
        "layer norm",
        "layer norm without a bias",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("transposed", "block", "flattened", "depthwise")
        ),
    ],
)
def test_gradients_by_our_kernels(launched: list[str], name: str) -> None:
    make, shape = MODELS[name]
    check_step(make().train(), backend(fusion_schema=ALL_GRADIENTS, strict=True), torch.randn(*shape))
    assert any("backward" in each for each in launched)


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
@pytest.mark.parametrize(
    "ours",
    [
        "",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("input_backward", "weight_backward", "backward")
        ),
    ],
)
def test_gradients_that_are_slower_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, cache_of_kernels: Path, launched: list[str], ours: str
) -> None:
    """One gradient of an operator may be ours and the other one torch's, which computes no more than that."""
    taken: list[Any] = []

    def measure(kernel: Any, torchs: Any) -> tuple[float, float]:
        launched.clear()
        kernel()
        (name,) = launched
        taken.append(name)
        torchs()
        return (1.0, 2.0) if ours and ours in name else (2.0, 1.0)

    masks: list[Any] = []
    backward = torch.ops.aten.convolution_backward.default
    fuse = graph_compiler.fuse

    def note(*arguments: Any, **options: Any) -> Any:
        found = fuse(*arguments, **options)
        masks.extend(each.args[-1] for each in found.module.graph.nodes if each.target is backward)
        launched.clear()
        return found

    monkeypatch.setattr(graph_compiler, "fuse", note)
    monkeypatch.setattr(region_kernels, "is_promising", lambda *_: True)
    model = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    check_step(model, replace(backend(), measure_region=measure), torch.randn(2, 3, 8, 8))
    assert len(taken) == 2  # the forward is not timed
    backwards = sorted(each for each in launched if "backward" in each)
    assert backwards == sorted(each for each in taken if ours and ours in each)
    expected = {
        "": [[True, True, True]],
        "input_backward": [[False, True, True]],
        "weight_backward": [[True, False, True]],
        "backward": [],
    }
    assert masks == expected[ours]


class Perceptron(nn.Module):
    """Products whose results the backward needs, and products that it does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = x + self.second(functional.gelu(self.first(x)))
        return functional.relu(self.last(x + self.second(self.first(x))))


@pytest.mark.usefixtures("backward_kernels", "cache_of_kernels")
@pytest.mark.parametrize(
    ("make", "nested"),
    [
        pytest.param(lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU()), None, id="last"),
        *(
            pytest.param(Perceptron, nested, id=f"all-{nested}", marks=pytest.mark.slow)
            for nested in (None, "inductor")
        ),
    ],
)
def test_products_that_are_faster_than_torchs(
    monkeypatch: pytest.MonkeyPatch, launched: list[str], make: Callable[[], nn.Module], nested: str | None
) -> None:
    """Those of the forward, and those that are gradients of inputs or of weights."""
    monkeypatch.setattr(region_kernels, "is_promising", lambda *_: True)
    made = replace(
        backend(nested, autotune="quick"),
        measure_region=lambda *functions: [*[1.0] * (len(functions) - 1), 2.0],
        measure_graph=lambda functions: [[float(len(functions) - at)] for at in range(len(functions))],
    )
    check_step(make(), made, torch.randn(5, 3, 8))
    last = {"matmul_15x4x8", "matmul_15x8x4", "matmul_4x8x15"}
    assert last <= {name.partition("_f32")[0] for name in launched}


class Normalized(nn.Module):
    """A convolution and a batch norm, whose running statistics change in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.norm(self.conv(x)))


NAMES = ["iree_boo", pytest.param("iree_boo_inductor", marks=pytest.mark.slow)]
MEASURED = [{"autotune": False}, None]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", MEASURED)
def test_a_checkpoint_of_a_compiled_module(name: str, options: Any) -> None:
    """It computes the forward twice, and the second time ends it where the last tensor for the backward is saved."""
    model, x = Normalized(), torch.randn(2, 3, 8, 8)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend=name, dynamic=False, options=options)
    found, expected = (
        step(lambda x, made=made: checkpoint(made, x, use_reentrant=False), list(owner.parameters()), x)
        for made, owner in ((compiled, model), (other, other))
    )
    for one, two in zip((*found, *model.buffers()), (*expected, *other.buffers()), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", MEASURED)
def test_a_checkpoint_in_a_compiled_function(name: str, options: Any) -> None:
    """Compiled, it computes the forward once, so that it changes running statistics once."""
    steps = []
    model, x = Normalized(), torch.randn(2, 3, 8, 8)
    for made, given in (("aot_eager", None), (name, options)):
        torch._dynamo.reset()
        owner = copy.deepcopy(model)

        def function(x: Any, owner: Any = owner) -> Any:
            return checkpoint(lambda y: 1.0 * owner(y), x, use_reentrant=False).sin()

        compiled = torch.compile(function, backend=made, dynamic=False, options=given)
        steps.append([*step(compiled, list(owner.parameters()), x), *owner.buffers()])
    for one, two in zip(*steps, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_with_inductor(name: str) -> None:
    make, shape = MODELS[name]
    made = backend(nested_backend="inductor", fusion_schema=ALL_GRADIENTS)
    check_step(make().train(), made, torch.randn(*shape))


def test_a_tensor_that_requires_grad_without_grad_mode() -> None:
    model, x = Block().eval(), torch.randn(2, 8, 6, 6, requires_grad=True)
    compiled = torch.compile(model, backend=backend(strict=True), dynamic=False)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled(x).requires_grad


class ImageStrides(TorchDispatchMode):
    """Notes the strides of the images that gradients of convolutions read, by the name of their operator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("convolution_backward", "convolution_gradients"):
            self.found.append((name, [each.stride() for each in args[:2]]))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("filters", [8, 16])
def test_inductor_leaves_images_of_depthwise_gradients_in_channels_last(filters: int) -> None:
    """It would permute the input to n, h, c, w."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, filters, 3, groups=8, bias=False)
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    check_step(model, backend(nested_backend="inductor"), x)
    compiled = torch.compile(model, backend=backend(nested_backend="inductor"), dynamic=False)
    compiled(x).square().mean().backward()
    loss = compiled(x).square().mean()
    with ImageStrides() as strides:
        loss.backward()
    last, first = strides.found
    channels_last = (4 * 4 * filters, 1, 4 * filters, filters), (6 * 6 * 8, 1, 6 * 8, 8)
    assert last == ("convolution_gradients", list(channels_last))
    assert first[0] == "convolution_gradients"


def measured(*functions: Callable[[], Any]) -> list[float]:
    """The last function, which is torch, is the slowest."""
    for function in functions:
        function()
    return [*(1e-3 for _ in functions[1:]), 1.0]


@pytest.mark.usefixtures("backward_kernels")
def test_a_gradient_that_reads_its_operands_through_views_is_ours(
    monkeypatch: pytest.MonkeyPatch, launched: list[str]
) -> None:
    """As in ConvNeXt: the kernel's results are compared with those of torch, which reads the same views."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(16, 16, 3, padding=1, groups=16)

        def forward(self, rows: Any) -> Any:
            images = (rows * 2).permute(0, 3, 1, 2)
            return self.convolution(images).permute(0, 2, 3, 1).tanh()

    monkeypatch.setattr(region_kernels, "is_promising", lambda *_: True)
    check_step(Rows(), replace(backend(), measure_region=measured), torch.randn(2, 6, 5, 16))
    assert any("weight_backward" in each for each in launched)


def test_a_backward_for_inductor_computes_batch_norms_again() -> None:
    """As with inductor alone: the forward stores what a convolution computes, and not what follows from it, too."""
    made = backend(nested_backend="inductor")
    operators = made.decompositions()
    assert torch.ops.aten.native_batch_norm_backward.default in operators
    assert torch.ops.aten.threshold_backward.default in operators
    kept = ("convolution", "convolution_backward", "relu", "silu", "native_layer_norm")
    assert not any(getattr(torch.ops.aten, name).default in operators for name in kept)
    assert backend().decompositions() == {}
