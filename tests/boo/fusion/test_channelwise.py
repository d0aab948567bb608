"""Programs that move, scale and add channels are one kernel, which computes what torch computes in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import check_close, launched
from torch.nn import functional

from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
#: What marks the kernels that this package writes.
KERNEL = "hal.executable.source"
Function = Callable[[Any, Any], Any]


def norm(x: Any, *, affine: bool = True) -> Any:
    channels = x.shape[1]
    terms = [
        torch.linspace(0.5, 1.5, channels) + shift for shift in ((0, 0.25, 0.5, -1) if affine else (0, 0.25))
    ]
    return functional.batch_norm(x, *terms)


def shuffle(x: Any, groups: int) -> Any:
    n, c, *pixels = x.shape
    return x.reshape(n, groups, c // groups, *pixels).transpose(1, 2).reshape(n, c, *pixels)


#: Of two images, with 8 and `channels` channels.
CHANNELWISE: dict[str, Function] = {
    "cat": lambda x, y: torch.cat([x, y], 1),
    "one tensor twice": lambda x, y: torch.cat([y, x, y], 1),
    "norm": lambda x, y: norm(torch.cat([x, y], 1)).relu(),
    "norm without weights": lambda x, y: norm(torch.cat([y, x], -3), affine=False),
    "slice": lambda x, y: torch.cat([y[:, 1:], x[:, -3:-1], x[:, :2]], 1),
    "split": lambda x, y: [part + x[:, :1] * 2.0 for part in torch.cat([x, y], 1).split(1, 1)[:3]],
    "sizes": lambda x, y: [functional.leaky_relu(each, 0.3) for each in y.split([1, y.shape[1] - 1], 1)],
    "chunk": lambda x, y: [each - 1.0 for each in x.chunk(2, 1)],
    "arithmetic": lambda x, y: torch.cat([x + x, x * x, y - y * 0.5], 1),
    "shuffle 2": lambda x, y: shuffle(torch.cat([x, x, y, y], 1), 2).relu(),
    "shuffle 4": lambda x, y: shuffle(torch.cat([x, y] * 4, 1), 4),
    "operator for shuffles": lambda x, y: functional.channel_shuffle(torch.cat([y, x, y], 1), 2),
    "shuffle and chunk": lambda x, y: [*shuffle(torch.cat([x, y] * 2, 1), 2).chunk(2, 1)],
}
#: Of images of 8 channels, what else is in the program, so that IREE compiles it.
OTHERS: dict[str, Function] = {
    "rows": lambda x, y: torch.cat([x, x.exp()], 2),
    "images": lambda x, y: torch.cat([x, x * 2.0], 0).relu(),
    "pixels": lambda x, y: [each + 1.0 for each in x.split(2, 3)],
    "step": lambda x, y: x[..., ::2] * x[..., 1::2],
    "vectors": lambda x, y: torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1),
}


def programs_of(
    function: Function,
    pixels: tuple[int, ...],
    channels: int,
    memory: torch.memory_format,
    *,
    is_read: bool = True,
) -> list[Any]:
    """The programs between two convolutions, and with `is_read` one for each result, which read channels last."""
    rank = len(pixels)
    convolve = {2: functional.conv2d, 3: functional.conv3d}[rank]
    weights = [torch.randn(each, 3, *[1] * rank) for each in (8, channels)]
    x = torch.randn(2, 3, *pixels).contiguous(memory_format=memory)

    def compute(x: Any, *weights: Any) -> list[Any]:
        found = function(*(convolve(x, each) for each in weights))
        results = found if isinstance(found, list) else [found]
        return [
            convolve(each, torch.ones(2, each.shape[1], *[1] * rank)) if is_read else each for each in results
        ]

    graph = inference_graph(compute, x, *weights).graph
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    return [each.spec.operation for each in find_glue(graph, regions)]


def check(program: OperatorProgram) -> None:
    """The kernel computes what torch computes, also of NaN and infinities."""
    rng = np.random.default_rng(3)
    for spoils in (False, True):
        operands = [
            np.abs(each) if each.ndim == 1 else each
            for each in (program.draw(of, program.distributions[0], rng) for of in program.operands)
        ]
        if spoils:
            channels = operands[0].shape[-1]
            operands[0][..., 1 % channels] = np.nan
            operands[0][1, ..., 2 % channels] = np.inf
        for found, reference in zip(launched(program, operands), program.reference(operands), strict=True):
            check_close(found, reference)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*CHANNELWISE][::2], id="some"),
        pytest.param([*CHANNELWISE], id="all", marks=pytest.mark.slow),
    ],
)
def test_programs_of_channels_are_one_kernel(names: list[str]) -> None:
    for name in names:
        function = CHANNELWISE[name]
        programs = programs_of(function, (3, 5), 5, torch.channels_last)
        assert programs, name
        for program in programs:
            assert KERNEL in program.mlir("f"), name
            check(program)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [2, 3, 16, 31, 67, 131])
@pytest.mark.parametrize("name", ["norm", "slice", "shuffle 2", "shuffle 4", "shuffle and chunk"])
def test_any_number_of_channels(name: str, channels: int) -> None:
    for program in programs_of(CHANNELWISE[name], (6, 7), channels, torch.channels_last):
        assert KERNEL in program.mlir("f")
        check(program)


def test_volumes_and_as_many_tensors_as_dense_networks_have() -> None:
    (volumes,) = programs_of(CHANNELWISE["norm"], (2, 3, 2), 5, torch.channels_last_3d)
    (many,) = programs_of(
        lambda x, y: norm(torch.cat([x, y, *(y * float(each) for each in range(40))], 1)),
        (3, 3),
        4,
        torch.channels_last,
    )
    for program in (volumes, many):
        assert KERNEL in program.mlir("f")
        check(program)


def test_scales_of_many_channels_are_not_kept_on_the_stack() -> None:
    (program,) = programs_of(CHANNELWISE["norm"], (1, 2), 3600, torch.channels_last)
    text = program.mlir("f")
    assert KERNEL in text and "memref.alloca" not in text
    check(program)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_iree_compiles_the_others(memory: torch.memory_format) -> None:
    for name, function in OTHERS.items():
        for program in programs_of(function, (4, 6), 8, memory, is_read=False):
            assert KERNEL not in program.mlir("f"), name
            check(program)


def test_a_vector_beside_an_image_has_an_element_for_each_column() -> None:
    """Not for each channel, also where there are as many channels as columns."""
    for program in programs_of(
        lambda x, y: torch.cat([x, y], 1) * torch.linspace(0.5, 1.5, 16),
        (4, 16),
        8,
        torch.channels_last,
    ):
        assert KERNEL not in program.mlir("f")
        check(program)


@pytest.mark.slow
def test_images_whose_channels_come_first_are_joined_by_iree() -> None:
    for name, function in CHANNELWISE.items():
        for program in programs_of(function, (3, 5), 4, torch.contiguous_format, is_read=False):
            assert name == "split" or KERNEL not in program.mlir("f"), (
                name
            )  # images of one channel have both orders
            check(program)


def test_a_wrong_kernel_is_noticed() -> None:
    (program,) = programs_of(CHANNELWISE["cat"], (3, 5), 5, torch.channels_last)
    data = program.to_dict()
    swapped = OperatorProgram.from_dict(
        {**data, "calls": data["calls"].replace('{"value":0},{"value":1}', '{"value":1},{"value":0}')}
    )
    assert swapped != program
    rng = np.random.default_rng(3)
    operands = [program.draw(each, program.distributions[0], rng) for each in program.operands]
    (found,), (reference,) = launched(swapped, operands), program.reference(operands)
    assert (np.abs(found - reference.expected) > reference.tolerance).any()
