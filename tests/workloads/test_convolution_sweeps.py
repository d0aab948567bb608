"""Sweeps of convolutions: which rank options imply, and what layouts, modes and transposed ones give."""

from __future__ import annotations

import pytest

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Epilogue, SweepOptions
from dispatch_profiler.workloads import Sweep, sweep_workload


def swept(kinds=(), layouts=(), epilogues=(Epilogue(),), **shapes):
    """The operations of a sweep of f32, nothing of which is left out."""
    named = {f"conv_{name}": values for name, values in shapes.items()}
    options = SweepOptions(named, (ElementTypes(),), conv_layouts=layouts, epilogues=epilogues)
    result = sweep_workload(Sweep(kinds, options))
    assert result.left_out == ()
    return list(result.workload.operations)


@pytest.mark.parametrize(
    ("shapes", "layouts", "kinds"),
    [
        ({"w": (100,)}, (), {"conv1d"}),
        ({"w": (100,), "h": (9,)}, (), {"conv2d"}),
        ({"w": (100,), "r": (1,)}, (), {"conv2d"}),
        ({"n": (2,)}, (), {"conv2d"}),
        ({"s": (5,)}, (), {"conv2d"}),
        ({"d": (8,), "h": (9,)}, (), {"conv3d"}),
        ({"t": (1,)}, (), {"conv3d"}),
        ({"stride": ((1, 2, 2),)}, (), {"conv3d"}),
        ({"w": (100,), "stride": ((1, 2),)}, (), {"conv2d"}),
        ({"stride": ((2,),)}, (), {"conv2d"}),
        ({"n": (2,)}, ("nwc",), {"conv1d"}),
        ({"h": (9,)}, ("ndhwc",), {"conv3d"}),
        ({"h": (9,)}, ("nwc",), {"conv2d"}),
        ({"w": (99,)}, ("ncw", "nchw"), {"conv1d", "conv2d"}),
        ({"mode": ("weight_backward",)}, (), {"conv2d"}),
    ],
)
def test_shapes_and_layouts_imply_the_rank(shapes, layouts, kinds):
    """A depth means conv3d, a width without a height conv1d; what fits no other is conv2d."""
    assert {operation.kind for operation in swept(layouts=layouts, **shapes)} == kinds


def test_a_kind_may_be_named():
    assert swept(("conv1d",), s=(5,)) == [Conv1d(1, 1500, 512, 512, 5)]
    assert swept(("conv3d",), h=(9,)) == [Conv3d(1, 8, 9, 28, 64, 64, 3, 3, 3)]


def test_one_stride_is_that_of_every_direction():
    shape = {
        "d": (5,),
        "h": (6,),
        "w": (7,),
        "c": (2,),
        "k": (3,),
        "stride": ((2,), (1, 2, 2)),
        "padding": ((1,),),
    }
    found = swept(**shape)
    assert [operation.stride for operation in found] == [(2, 2, 2), (1, 2, 2)]
    assert {operation.padding for operation in found} == {(1, 1, 1)}


def test_each_kind_takes_the_layouts_of_its_rank():
    """A kind without one has its default."""
    layouts = ("nchw", "nhwc_fhwc_nhwc", "ncw")
    found = swept(("conv1d", "conv2d", "conv3d"), layouts, n=(1,))
    assert [(op.kind, op.layout) for op in found] == [
        ("conv1d", "ncw"), ("conv2d", "nchw"), ("conv2d", "nhwc_fhwc_nhwc"), ("conv3d", "ndhwc")
    ]  # fmt: skip


def test_modes_apply_to_predefined_problems_too():
    modes = ("forward", "input_backward", "weight_backward")
    for kind in (Conv1d, Conv2d, Conv3d):
        found = swept((kind.kind,), mode=modes)
        assert len(found) == 3 * len(kind.problems)
        assert {operation.mode for operation in found} == set(modes)


def test_predefined_convolutions_are_of_audio_and_video():
    """Strided, padded and grouped ones of one dimension; strided and pointwise ones of three."""
    audio, video = swept(("conv1d",)), swept(("conv3d",))
    assert {op.groups for op in audio} == {1, 16} and {op.stride for op in audio} == {(1,), (2,)}
    assert {(1, 1, 1), (3, 3, 3), (3, 7, 7)} == {op.filter_size for op in video}


def test_a_transposed_convolution_is_generated_as_its_mirror_image():
    found = swept(
        n=(1,), h=(7,), w=(9,), c=(4,), k=(6,), stride=((2,),), padding=((1,),), transposed=(True,),
        output_padding=((1,),), epilogues=(Epilogue.parse("bias"),),
    )  # fmt: skip
    mirrored = Conv2d(
        1, 14, 18, 6, 4, 3, 3, (2, 2), (1, 1), epilogue=Epilogue.parse("bias"), mode="input_backward"
    )
    assert found == [mirrored]
    assert found[0].operands[2].shape == (6,)


def test_a_weight_gradient_with_an_epilogue_is_left_out():
    options = SweepOptions(
        {"conv_n": (1,), "conv_mode": ("input_backward", "weight_backward")},
        (ElementTypes(),),
        epilogues=(Epilogue(), Epilogue.parse("bias")),
    )
    result = sweep_workload(Sweep((), options))
    assert len(result.workload.operations) == 3
    assert result.left_out == ("conv2d: weight_backward has no epilogue, but got bias",)


def test_an_output_padding_without_a_transposed_convolution_is_refused():
    with pytest.raises(
        OperationError, match="output padding is for transposed convolutions, but got 1x0"
    ) as caught:
        swept(output_padding=((1, 0),))
    assert caught.value.hint == "add --conv-transposed, or leave out --conv-output-padding"
