"""Gradients of convolutions as an operator that keeps memory formats are those of torch, and are used for channels_last."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from dispatch_profiler.boo.fusion.execute.torch_gradients import (  # noqa: E402
    CONVOLUTION_GRADIENTS,
    keep_memory_formats,
)

LAST = torch.channels_last
BACKWARD = torch.ops.aten.convolution_backward.default


def operands(memory_format: Any) -> list[Any]:
    """The gradient of the result of a depthwise convolution, its input and its weight."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 5, 5), (2, 4, 5, 5), (4, 1, 3, 3)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    return [each.to(memory_format=memory_format) for each in tensors]


def options(mask: list[bool]) -> tuple[Any, ...]:
    return [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 4, mask


def traced(mask: list[bool], memory_format: Any) -> Any:
    """A graph of the gradients of `mask`, without the operator that keeps formats."""

    def gradients(*tensors: Any) -> list[Any]:
        results = BACKWARD(*tensors, *options(mask))
        return [each for each, is_wanted in zip(results, mask, strict=True) if is_wanted]

    return make_fx(gradients, tracing_mode="fake")(*operands(memory_format))


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_the_results_are_those_of_torch(mask: list[bool]) -> None:
    module, tensors = traced(mask, LAST), operands(LAST)
    keep_memory_formats(module.graph)
    module.recompile()
    targets = [node.target for node in module.graph.nodes]
    assert CONVOLUTION_GRADIENTS in targets and BACKWARD not in targets
    expected = [each for each in BACKWARD(*tensors, *options(mask)) if each is not None]
    found = module(*tensors)
    assert len(found) == len(expected) == sum(mask)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_shapes_and_strides_are_known_without_computing() -> None:
    """Also of results in the nodes of the graph, which later passes read."""
    module = traced([True, True, False], LAST)
    (node,) = [each for each in module.graph.nodes if each.target is BACKWARD]
    expected = [(each.shape, each.stride()) for each in node.meta["val"][:2]]
    keep_memory_formats(module.graph)
    (made,) = [each for each in module.graph.nodes if each.target is CONVOLUTION_GRADIENTS]
    assert [(each.shape, each.stride()) for each in made.meta["val"]] == expected
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in operands(LAST)]
        found = CONVOLUTION_GRADIENTS(*fakes, *options([True, True, False]))
    assert [(each.shape, each.stride()) for each in found] == expected


def test_contiguous_images_are_left_to_the_compiler() -> None:
    module = traced([True, True, False], torch.contiguous_format)
    keep_memory_formats(module.graph)
    assert CONVOLUTION_GRADIENTS not in [node.target for node in module.graph.nodes]
