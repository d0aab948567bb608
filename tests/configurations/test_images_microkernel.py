"""Microkernels for any number of images: those of one image, with another name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import ImagesMicrokernel, Microkernel, configuration_from_dict
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu")
IMAGES = Conv2d(5, 14, 14, 24, 70, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
KERNEL = ImagesMicrokernel((7, 96), (1, 14, 32))
OF_IMAGE = Microkernel((7, 96), (1, 14, 32), packed=True)


def test_it_has_the_tiles_and_the_packing_of_the_microkernel_of_one_image():
    assert ImagesMicrokernel.of(OF_IMAGE) == KERNEL
    assert KERNEL.plan(IMAGES) == OF_IMAGE.plan(IMAGES)
    assert KERNEL.packing(IMAGES) == OF_IMAGE.packing(IMAGES)
    assert KERNEL.packs_weight


@pytest.mark.parametrize("other", [replace(OF_IMAGE, packed=False), replace(OF_IMAGE, margin=16)])
def test_microkernels_that_copy_filters_or_images_have_none(other: Microkernel):
    assert ImagesMicrokernel.of(other) is None


OTHERS = {
    "product": (Matmul(8, 8, 8), "are for forward convolutions, not for matmul"),
    "gradient": (replace(IMAGES, mode="input_backward"), "are for forward convolutions, not for conv2d"),
    "f16": (replace(IMAGES, types=ElementTypes("f16", "f16", "f32")), "for f32 and bf16"),
    "bf16": (replace(IMAGES, types=ElementTypes("bf16", "bf16", "f32")), "in pairs of channels only"),
    "tiles": (replace(IMAGES, k=200), "96 filters of a workgroup do not divide"),
}


@pytest.mark.parametrize(("operation", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_operations_are_rejected_with_the_reason(operation: Operation, reason: str):
    assert KERNEL.invalid_reason(IMAGES, CPU.limits) is None
    assert reason in (KERNEL.invalid_reason(operation, CPU.limits) or "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"registers": (1, 14)}, "has 3 tiles"),
        ({"lanes": 4}, "lanes must be one of"),
        ({"pairs": 1}, "pairs must be"),
    ],
)
def test_invalid_fields_are_errors(changed: dict[str, object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        replace(KERNEL, **changed)


def test_the_name_has_every_field():
    assert KERNEL.name == "tile_config_images_microkernel_7x96_1x14x32_u4"
    others = [
        replace(KERNEL, distribution=(14, 96)),
        replace(KERNEL, registers=(1, 7, 32)),
        replace(KERNEL, unroll=2),
        replace(KERNEL, lanes=8),
        replace(KERNEL, pairs=True),
        replace(KERNEL, rounds=True),
    ]
    assert len({each.name for each in (KERNEL, OF_IMAGE, *others)}) == 8


def test_plain_data_is_read_back():
    assert configuration_from_dict(KERNEL.to_dict()) == KERNEL
    entry = {"images_microkernel": [1, 14, 32], "distribution": [7, 96]}
    assert ImagesMicrokernel.from_yaml(entry) == KERNEL
