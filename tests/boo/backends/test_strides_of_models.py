"""Results of regions are in channels_last memory; operators behind them that read memory as torch traced it get that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compiled_models import check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, DEFAULT_SUPPORTED_BOO_FUSIONS

#: Of torch's own modules, when inductor is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
STRICT = backend(strict=True)
ALL_GRADIENTS = backend(fusion_schema=DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS), strict=True)


class ChannelAttention(nn.Module):
    """Attention between channels, whose elements lie side by side in contiguous memory only."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(16, 48, 1)

    def forward(self, x: Any) -> Any:
        batch, _, height, width = x.shape
        q, k, v = self.qkv(x).view(batch, 3, 2, 8, height * width).unbind(1)
        return functional.scaled_dot_product_attention(q, k, v)


ONE_PIXEL = torch.randn(2, 3, 1, 1).to(memory_format=torch.channels_last)


LAYERS: list[list[nn.Module]] = [
    [nn.Conv2d(3, 8, 1)],
    [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()],
    [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)],
    [nn.Conv2d(3, 8, 1), nn.Sigmoid(), nn.Flatten(2)],
    [nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Hardswish()],
]


# The quick suite has each image with every third of the layers.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("x", "layers"),
    [
        pytest.param(
            *(x, layers),
            id=f"x{number}-layers{at}",
            marks=() if number == at % 3 else pytest.mark.slow,
        )
        for number, x in enumerate((ONE_PIXEL, ONE_PIXEL.expand(2, 3, 1, 4), ONE_PIXEL.expand(2, 3, 5, 1)))
        for at, layers in enumerate(LAYERS)
    ],
)
def test_axes_with_one_element(layers: list[nn.Module], x: torch.Tensor, launched: list[str]) -> None:
    check_equals_eager(nn.Sequential(*layers).eval(), STRICT, x)
    assert launched


@pytest.mark.parametrize("gradients", [False, True])
def test_results_with_axes_of_one_element_can_be_detached_in_place(gradients: bool) -> None:
    """As those of eager torch, which are no views."""
    compiled = torch.compile(nn.Conv2d(3, 8, 3, padding=1).eval(), backend=STRICT, dynamic=False)
    with torch.set_grad_enabled(gradients):
        result = compiled(torch.randn(2, 3, 1, 1))
    assert not result._is_view()
    result.detach_()


@pytest.fixture
def in_memory_order() -> Iterator[Callable[[Any], Any]]:
    """An operator of the user that returns the elements as they lie in memory."""
    with torch.library._scoped_library("of_the_user", "DEF") as library:

        def elements(x: torch.Tensor) -> torch.Tensor:
            return torch.as_strided(x, (x.numel(),), (1,)).clone()

        library.define("elements(Tensor x) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))
        library.impl("elements", elements, "CompositeExplicitAutograd")
        torch.library.register_fake("of_the_user::elements", lambda x: x.new_empty(x.numel()), lib=library)
        yield torch.ops.of_the_user.elements


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8)), torch.randn(2, 4, 16)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8)), torch.randn(2, 4, 8, 8)),
        # With one image, the stride of its axis, which has no meaning, differs from torch's.
        (ChannelAttention(), torch.randn(2, 16, 8, 8)),
    ],
    ids=["group norm of rows", "group norm of images", "attention"],
)
def test_a_model(model: nn.Module, x: torch.Tensor, launched: list[str]) -> None:
    check_equals_eager(model.eval(), STRICT, x)
    assert launched


def test_an_operator_of_the_user(in_memory_order: Callable[[Any], Any], launched: list[str]) -> None:
    convolution = nn.Conv2d(3, 8, 3).eval()
    check_equals_eager(lambda x: in_memory_order(convolution(x)), STRICT, torch.randn(1, 3, 8, 8))
    assert launched


@pytest.mark.slow
def test_a_branch_of_the_graph(launched: list[str]) -> None:
    convolution = nn.Conv2d(3, 4, 3)

    def branch(x: Any) -> Any:
        y = convolution(x).relu()
        return torch.cond(y.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (y,))

    check_equals_eager(branch, STRICT, torch.randn(1, 3, 8, 8))
    assert launched


@pytest.mark.slow
def test_gradients_that_torch_computes_from_ours(launched: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 4, 8, 8)
    found, expected = (
        torch.autograd.grad(each(x).square().sum(), list(model.parameters()))
        for each in (torch.compile(model, backend=ALL_GRADIENTS, dynamic=False), model)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert any("backward" in name for name in launched)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "behind", "shape"),
    [
        (nn.Conv2d(2, 8, 3), lambda y: y.roll(1, -1), (2, 2, 6, 6)),
        (nn.Conv3d(2, 4, 1), lambda y: functional.pad(y, [1] * 6, mode="replicate"), (1, 2, 4, 4, 4)),
        pytest.param(
            *(nn.Conv3d(2, 4, 1), lambda y: functional.pad(y, [1] * 6, mode="reflect"), (1, 2, 4, 4, 4)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["roll", "replicate", "reflect"],
)
def test_operators_that_keep_the_memory_format(
    layer: nn.Module, behind: Callable[[Any], Any], shape: tuple[int, ...], launched: list[str]
) -> None:
    check_equals_eager(lambda x: behind(layer.eval()(x)), STRICT, torch.randn(shape))
    assert launched


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_the_backward_reads_what_inductor_lets_the_forward_save(launched: list[str]) -> None:
    """Inductor gives the imaginary part other strides than eager torch, of which it is every other element."""
    convolution, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def model(x: Any) -> Any:
        y = convolution(x)
        return norm(torch.complex(y, y * 2).imag)

    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, backend=backend("inductor", strict=True), dynamic=False)
    for _ in range(2):
        found, expected = (
            torch.autograd.grad(each(x).pow(3).sum(), list(norm.parameters())) for each in (compiled, model)
        )
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert launched


def test_windows_of_images_have_more_axes_than_a_region(launched: list[str]) -> None:
    convolution, norm = nn.Conv2d(3, 8, 1), nn.LayerNorm(8)

    def windows(x: Any) -> Any:
        y = convolution(x).relu().reshape(1, 8, 2, 7, 2, 7).permute(0, 2, 4, 3, 5, 1)
        return norm(y.reshape(1, 4, 49, 8)), norm(y)

    check_equals_eager(windows, backend(), torch.randn(1, 3, 14, 14))
    assert sum("layer_norm" in name for name in launched) == 1
    assert sum("conv2d" in name for name in launched) == 1


@pytest.mark.slow
def test_shapes_that_depend_on_data_leave_other_regions_alone(launched: list[str]) -> None:
    norm, convolution = nn.LayerNorm(8), nn.Conv2d(3, 4, 1)

    def select(x: Any, image: Any) -> Any:
        return norm(x[x[:, 0] > 0]), convolution(image)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check_equals_eager(select, backend(), torch.randn(16, 8), torch.randn(1, 3, 4, 4))
    assert [name.partition("_")[0] for name in launched] == ["conv2d"]


class ViewedTwice(nn.Module):
    """Of one image: views of it have strides of their own along its axis, and may be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 4, 3, padding=1, groups=2, dilation=2)

    def forward(self, x: Any) -> Any:
        found = self.conv(x).movedim(3, 3)
        return found, found.view_as(found), found.relu()


@pytest.mark.slow
@pytest.mark.parametrize("has_gradients", [False, True])
def test_inductors_results_have_eagers_strides_along_axes_with_one_element(
    has_gradients: bool, launched: list[str]
) -> None:
    torch.manual_seed(0)
    model = ViewedTwice().requires_grad_(has_gradients)
    x = torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last)
    expected = model(x)
    found = torch.compile(model, backend=backend("inductor", autotune=False))(x)
    assert launched
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    if not has_gradients:
        found[2].mul_(torch.ones((), requires_grad=True))  # not a view that was made without gradients
        assert found[2].requires_grad
