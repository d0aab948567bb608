"""Launches with different numbers of rows or images share one kernel, and the weight that was packed for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dispatch_profiler.boo.driver.launch import get_batch_launch
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.kernels import any_batch, prepare_batch_kernels
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.configurations import RowsMicrokernel
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Convolution, Epilogue, Matmul
from dispatch_profiler.targets import LARGEST_BATCH, parse_target, rows_microkernel

#: 70 filters are two blocks, the second of which is masked; 45 are one whole vector, two whole ones and a part of a half.
LINEAR = Matmul(1, 70, 40, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu+residual"))
ROWS = (1, 2, 5, 11, 12, 13, 25, 33, 100, 197)


@pytest.fixture(autouse=True)
def _builds_are_shared(monkeypatch: pytest.MonkeyPatch, shared_builds: Path) -> Iterator[None]:
    if rows_microkernel(replace(LINEAR, m=LARGEST_BATCH), parse_target("llvm-cpu")) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    torch.manual_seed(0)
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))
    SESSION.clear("batch_kernels", "batch_launches", "batch_rules")
    yield
    SESSION.clear("batch_kernels", "batch_launches", "batch_rules")


def operands(operation: Matmul) -> list[torch.Tensor]:
    return [torch.randn(each.shape) for each in operation.operands]


def launched(operation: Matmul, given: list[torch.Tensor]) -> torch.Tensor:
    x, weight, *others = given
    launch = get_batch_launch(RegionSignature(operation))
    flat = (x.reshape(-1), *launch.pack(weight), *(each.reshape(-1) for each in others))
    return launch.launchable(*flat).reshape(operation.m, operation.n)


def expected(operation: Matmul, given: list[torch.Tensor]) -> torch.Tensor:
    x, weight, *others = (each.double() for each in given)
    sums = x @ (weight.T if operation.rhs_layout == "n" else weight)
    if not others:
        return sums
    bias, residual = others
    return torch.nn.functional.gelu(sums + bias) + residual


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """f32 sums of at most some thousand terms differ from float64 by this much, relative to the largest."""
    assert (found - wanted).abs().max() <= 4e-6 * wanted.abs().max()


def use(monkeypatch: pytest.MonkeyPatch, kernel: RowsMicrokernel) -> None:
    monkeypatch.setattr(any_batch, "any_batch_kernel", lambda operation, target: kernel)


TILES = {
    "masked": (LINEAR, RowsMicrokernel((12, 32), ((12, 1, 32), (40, 2, 64), (LARGEST_BATCH, 3, 96)))),
    "half a vector": (replace(LINEAR, n=40), RowsMicrokernel((7, 32), ((LARGEST_BATCH, 2, 64),))),
    "weights k x n": (replace(LINEAR, rhs_layout="t"), RowsMicrokernel((5, 48), ((LARGEST_BATCH, 4, 48),))),
    "vectors of 8": (LINEAR, RowsMicrokernel((4, 16), ((8, 1, 16), (LARGEST_BATCH, 3, 32)), lanes=8)),
    "long sums": (
        Matmul(1, 32, 12288, rhs_layout="n"),
        RowsMicrokernel((3, 32), ((LARGEST_BATCH, 2, 32),), unroll=8),
    ),
}


@pytest.mark.some(2)
@pytest.mark.parametrize(("operation", "kernel"), TILES.values(), ids=TILES)
def test_results_are_those_of_torch_for_any_number_of_rows(
    operation: Matmul, kernel: RowsMicrokernel, monkeypatch: pytest.MonkeyPatch
):
    use(monkeypatch, kernel)
    for rows in ROWS:
        sized = replace(operation, m=rows)
        given = operands(sized)
        check(launched(sized, given), expected(sized, given))


def test_the_kernel_of_the_rule_is_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    looked_up = list[Matmul]()
    find = any_batch.find_kernels
    monkeypatch.setattr(
        any_batch,
        "find_kernels",
        lambda searches, cache, workers: (
            looked_up.extend(each.variant.dispatch.operation for each in searches)
            or find(searches, cache, workers)
        ),
    )
    for rows in (3, 64):
        sized = replace(LINEAR, m=rows)
        given = operands(sized)
        check(launched(sized, given), expected(sized, given))
    assert looked_up == [replace(LINEAR, m=LARGEST_BATCH)]


def test_all_numbers_of_rows_pack_the_weight_alike():
    few, many = (get_batch_launch(RegionSignature(replace(LINEAR, m=rows))) for rows in (2, 500))
    assert few.recipe == many.recipe
    assert few.kernel.vmfb is many.kernel.vmfb


def test_the_driver_is_chosen_for_each_power_of_two():
    scales = {
        rows: get_batch_launch(RegionSignature(replace(LINEAR, m=rows))).kernel.scale
        for rows in (1, 2, 3, 4, 5)
    }
    assert scales == {1: "1r", 2: "2r", 3: "4r", 4: "4r", 5: "8r"}


def test_operations_without_such_a_kernel_are_errors():
    transposed = replace(LINEAR, lhs_layout="n")
    with pytest.raises(UsageError, match="no kernel is for any number of rows or images"):
        get_batch_launch(RegionSignature(transposed))
    assert "no kernel is for any number of rows" in prepare_batch_kernels([transposed], 1)[transposed]


# -- convolutions ----------------------------------------------------------------------------------

IMAGE = Conv2d(1, 9, 11, 20, 70, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
CONVOLUTIONS: dict[str, Convolution] = {
    "residual": replace(IMAGE, epilogue=Epilogue.parse("bias+residual+relu")),
    "depthwise": replace(IMAGE, c=40, k=40, groups=40, epilogue=Epilogue.parse("bias+silu")),
    "groups": replace(IMAGE, k=48, groups=4, stride=(2, 2)),
    "one tap": replace(IMAGE, r=1, s=1, padding=(0, 0)),
    "lines": Conv1d(1, 30, 12, 40, 5, padding=(2,), layout="nwc_fwc_nwc"),
    "volumes": Conv3d(1, 4, 6, 7, 12, 40, 3, 3, 3, padding=(1, 1, 1), layout="ndhwc_fdhwc_ndhwc"),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("operation", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_results_are_those_of_torch_for_any_number_of_images(operation: Convolution):
    vmfbs = set[int]()
    for images in (1, 3, 8):
        sized = replace(operation, n=images)
        given = [torch.randn(each.shape) for each in sized.operands]
        launch = get_batch_launch(RegionSignature(sized))
        vmfbs.add(id(launch.kernel.vmfb))
        x, weight, *others = given
        flat = (x.reshape(-1), *launch.pack(weight.reshape(-1)), *(each.reshape(-1) for each in others))
        found = launch.launchable(*flat).reshape(sized.results[0].shape)
        check(found, convolved(sized, given))
    assert len(vmfbs) == 1


def convolved(operation: Convolution, given: list[torch.Tensor]) -> torch.Tensor:
    x, weight, *others = (each.double() for each in given)
    first = [0, x.dim() - 1, *range(1, x.dim() - 1)]
    last = [0, *range(2, x.dim()), 1]
    convolve = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}
    sums = convolve[x.dim()](
        x.permute(first),
        weight.permute(first),
        None,
        operation.stride,
        operation.padding,
        operation.dilation,
        operation.groups,
    ).permute(last)
    if not others:
        return sums
    if len(others) == 1:
        return torch.nn.functional.silu(sums + others[0])
    return torch.relu(sums + others[0] + others[1])
