"""Operations as people name them."""

from __future__ import annotations

import pytest
from every_kind import EVERY_MODE, IDS

from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
    Softmax,
)
from dispatch_profiler.operations.short_names import label, short_name, without_modules

BF16 = ElementTypes("bf16", "bf16", "bf16")


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Conv2d(1, 14, 14, 256, 256, 3, 3, padding=(1, 1), epilogue=Epilogue.parse("residual+relu")), "conv 3x3 256->256 14x14 s1 +residual relu"),
        (Conv2d(8, 112, 56, 16, 32, 1, 3, stride=(2, 2), types=BF16), "conv 1x3 16->32 112x56 s2 n8 bf16"),
        (Conv2d(1, 9, 9, 16, 32, 3, 3, stride=(1, 2), dilation=(2, 2), groups=4), "conv 3x3 16->32 9x9 s1x2 d2 g4"),
        (Conv2d(1, 7, 7, 960, 960, 3, 3, groups=960), "depthwise conv 3x3 960 7x7 s1"),
        (Conv2d(1, 14, 14, 8, 16, 3, 3, mode="input_backward"), "input gradient of conv 3x3 8->16 14x14 s1"),
        (Conv2d(1, 14, 14, 8, 16, 3, 3, mode="weight_backward"), "weight gradient of conv 3x3 8->16 14x14 s1"),
        (Conv1d(1, 300, 8, 16, 5), "conv1d 5 8->16 300 s1"),
        (Conv3d(1, 8, 16, 16, 4, 8, 3, 3, 3), "conv3d 3x3x3 4->8 8x16x16 s1"),
        (Matmul(128, 768, 3072, epilogue=Epilogue.parse("bias+gelu")), "matmul 128x768x3072 +bias gelu"),
        (Matmul(4, 8, 16, BF16, rhs_layout="n"), "matmul 4x8x16 bf16"),
        (BatchMatmul(12, 128, 64, 32), "batch_matmul 12 x 128x64x32"),
        (LayerNorm(6272, 144), "layer_norm 6272x144"),
        (Softmax(64, 197, "f16"), "softmax 64x197 f16"),
    ],
)  # fmt: skip
def test_a_short_name_says_what_people_ask_for(operation: Operation, name: str):
    assert short_name(operation) == name


CONV = Conv2d(1, 14, 14, 256, 256, 3, 3, padding=(1, 1), epilogue=Epilogue.parse("residual+relu"))
NAME = "conv 3x3 256->256 14x14 s1 +residual relu"


@pytest.mark.parametrize(
    ("modules", "width", "expected"),
    [
        ((), None, NAME),
        (("layer3.1.conv2",), None, f"{NAME} (layer3.1.conv2)"),
        (("layer3.1.conv2", "layer3.2.conv2"), None, f"{NAME} (layer3.1.conv2 +1 more)"),
        (("layer3.1.conv2",), 58, f"{NAME} (layer3.1.conv2)"),
        (("layer3.1.conv2",), 57, f"{NAME} (...1.conv2)"),
        (("layer3.1.conv2",), 52, f"{NAME} (...conv2)"),
        (("layer3.1.conv2",), 51, NAME),
        (("body.0.second.0",), 53, f"{NAME} (...cond.0)"),
        (("a.classifier",), 55, f"{NAME} (...assifier)"),
        (("a", "b"), 53, f"{NAME} (a +1 more)"),
        ((), 20, "conv 3x3 256->256..."),
    ],
)
def test_a_label_has_the_first_module_as_far_as_there_is_room(
    modules: tuple[str, ...], width: int | None, expected: str
):
    found = label(CONV, modules, width)
    assert found == expected and len(found) <= (width or 1000)
    assert without_modules(found) == NAME or not expected.startswith(NAME)


def test_other_operations_have_their_full_name():
    operation = BiasBackward(4, 16, 100)
    assert short_name(operation) == operation.name


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
def test_every_kind_has_a_name_of_one_line(operation: Operation):
    """It names the kind, and every extent that is not 1."""
    name = short_name(operation)
    assert name.isprintable() and operation.kind.split("_")[0].rstrip("123d") in name
