"""Launches whose weight was packed before compute what the kernels compute that pack it in every call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from launch_samples import drawn, expected_of, spec_of

from dispatch_profiler.boo.interface import LaunchKernel, Packing
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.chain import Chain
from dispatch_profiler.boo.launching.chain_layout import ChainStep
from dispatch_profiler.boo.launching.packing import PackedLaunch, packed_launch
from dispatch_profiler.compiler import IreeCompiler, launch_request
from dispatch_profiler.configurations import (
    FORMS,
    Configuration,
    CpuTiles,
    Formed,
    Microkernel,
    Tuned,
    packed_by,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Contraction, Conv1d, Conv2d, Epilogue, Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import parse_target

TARGET = parse_target("llvm-cpu")
FHWC = "nhwc_fhwc_nhwc"
RELU = Epilogue.parse("bias+relu")
LINEAR = Matmul(8, 64, 16, rhs_layout="n", epilogue=RELU)
CONV = Conv2d(1, 6, 6, 4, 64, 3, 3, padding=(1, 1), layout=FHWC, epilogue=RELU)
TRANSPOSED = Conv2d(1, 7, 7, 8, 4, 3, 3, stride=(2, 2), padding=(1, 1), layout=FHWC, mode="input_backward")
SAMPLES = [
    (Conv2d(1, 5, 5, 8, 16, 1, 1, layout=FHWC, epilogue=RELU), "permuted"),
    (Conv2d(1, 5, 5, 8, 96, 1, 1, stride=(2, 2), layout=FHWC), "blocked"),
    (CONV, "permuted"),
    (Conv2d(1, 4, 4, 8, 128, 3, 3, padding=(1, 1), layout=FHWC, epilogue=RELU), "blocked"),
    (CONV, "winograd_2"),
    (Conv2d(1, 6, 6, 4, 6, 3, 3, groups=2, layout=FHWC), "per_group"),
    (Conv1d(1, 9, 3, 4, 3, layout="ncw"), "permuted"),
    (TRANSPOSED, "phases"),
    (TRANSPOSED, "shuffled"),
    (Conv2d(1, 6, 6, 8, 2, 3, 3, padding=(1, 1), layout="nchw", epilogue=RELU), "kn2row"),
    (LINEAR, "panels"),
    (LINEAR, "permuted"),
]


class Given:
    """The provider of one kernel."""

    def __init__(self, found: LaunchKernel) -> None:
        self.found = found

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        return self.found


def launch_kernel(operation: Contraction, configuration: Configuration) -> LaunchKernel:
    dispatch = Dispatch(operation, configuration)
    built = IreeCompiler().build(launch_request(dispatch, TARGET))
    assert built.verify, built.outcomes
    steps = configuration.packing(operation)
    packing = Packing(dispatch.packing_function, packed_by(steps), steps) if steps else None
    return LaunchKernel(built.verify, dispatch.name, dispatch.name, "", packing)


def tensors(operation: Contraction, seed: int = 0) -> list[torch.Tensor]:
    return [torch.from_numpy(each) for each in drawn(operation, seed)]


def launched(launch: PackedLaunch, operands: list[torch.Tensor]) -> torch.Tensor:
    lhs, weight, *rest = operands
    return launch.launchable(lhs, *launch.pack(weight), *rest)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("operation", "configuration"),
    [
        *((operation, Formed(form, packed=True)) for operation, form in SAMPLES),
        (LINEAR, Microkernel((8, 32), (4, 1, 32), packed=True)),
        (replace(LINEAR, rhs_layout="t"), Microkernel((8, 64), (8, 1, 16), packed=True)),
        (CONV, Microkernel((6, 64), (3, 2, 32), margin=16, packed=True)),
        (replace(CONV, layout="nhwc"), Microkernel((6, 64), (3, 2, 32), packed=True)),
        (replace(CONV, k=80, groups=2), Microkernel((6, 128), (3, 2, 32), unroll=2, packed=True)),
        (replace(CONV, k=40), Microkernel((6, 64), (3, 2, 32), packed=True)),
    ],
    ids=lambda each: each.name,
)
def test_launches_with_packed_weights_agree_with_the_reference(
    operation: Contraction, configuration: Configuration
) -> None:
    packed = packed_launch(spec_of(operation), launch_kernel(operation, configuration))
    for seed in range(2):
        operands = tensors(operation, seed)
        found = launched(packed, operands)
        (expected,) = expected_of(operation, [each.numpy() for each in operands])
        assert np.array_equal(found.numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "form"), [(CONV, "permuted"), (LINEAR, "panels")])
def test_sums_are_rounded_as_those_of_the_unpacked_kernel(operation: Contraction, form: str) -> None:
    packed = packed_launch(spec_of(operation), launch_kernel(operation, Formed(form, packed=True)))
    unpacked = Launchable(spec_of(operation), Given(launch_kernel(operation, Formed(form))))
    operands = [torch.randn(each.shape) for each in operation.operands]
    assert torch.equal(launched(packed, operands), unpacked(*operands))


@pytest.mark.slow
def test_winograd_is_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    operands = [torch.from_numpy(rng.random(each.shape, "f4") - 0.5) for each in CONV.operands]
    kernel = launch_kernel(CONV, Formed("winograd", packed=True))
    found = launched(packed_launch(spec_of(CONV), kernel), operands)
    image, filters, bias = (each.double() for each in operands)
    sums = torch.nn.functional.conv2d(image.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2), bias, padding=1)
    assert (found.double() - torch.relu(sums).permute(0, 2, 3, 1)).abs().max() < 2e-5
    assert kernel.packing is not None
    assert [each.elements for each in kernel.packing.tensors] == [36 * 4 * 64]


def test_every_form_that_packs_is_a_sample() -> None:
    every = {form for _, form in SAMPLES} | {"winograd"}
    # They compute products, whose right operand these filters and weights already are.
    assert FORMS.keys() - every == {
        "im2col",
        "im2col_t",
        "im2col_t32",
        "taps",
        "transposed",
        "transposed_panels",
    }


def test_a_chain_takes_packed_weights() -> None:
    operation = Conv2d(1, 6, 6, 16, 16, 3, 3, padding=(1, 1), layout=FHWC)
    launch = packed_launch(spec_of(operation), launch_kernel(operation, Formed("permuted", packed=True)))
    rng = np.random.default_rng(0)
    image, weight = (torch.from_numpy(rng.integers(-2, 3, s.shape).astype("f4")) for s in operation.operands)
    (packed,) = launch.pack(weight)
    chain = Chain([ChainStep(launch.launchable, (0, 1)), ChainStep(launch.launchable, (2, 1))], 2, [3])
    filters = weight.permute(0, 3, 1, 2).double()
    expected = image.permute(0, 3, 1, 2).double()
    for _ in range(2):
        expected = torch.nn.functional.conv2d(expected, filters, padding=1)
    for _ in range(2):  # the first call launches the kernels one by one
        (found,) = chain(image, packed)
        assert torch.equal(found, expected.permute(0, 2, 3, 1).float())


def test_weights_that_cannot_be_read_in_place_are_copied() -> None:
    launch = packed_launch(spec_of(LINEAR), launch_kernel(LINEAR, Formed("panels", packed=True)))
    _, weight, _ = tensors(LINEAR)
    (expected,) = launch.pack(weight)
    memory = torch.empty(weight.numel() + 1)[1:]
    (found,) = launch.pack(memory.copy_(weight.reshape(-1)))
    assert torch.equal(found, expected)
    (found,) = launch.pack(torch._neg_view(-weight))
    assert torch.equal(found, expected)
    (found,) = launch.pack(torch.nn.Parameter(weight))
    assert torch.equal(found, expected) and not found.requires_grad


def test_a_library_entry_is_packed_too() -> None:
    tiles = CpuTiles((32, 64), (8, 32, 1))
    packed = Tuned(Formed("permuted", tiles, packed=True))
    assert Tuned(Formed("permuted", tiles)).with_packed_weight(LINEAR) == packed
    assert packed.with_packed_weight(LINEAR) is None
    assert Formed("transposed", tiles).with_packed_weight(LINEAR) is None
    assert tiles.with_packed_weight(LINEAR) is None
