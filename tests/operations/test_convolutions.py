"""Convolutions of every rank, layout and mode: names, tensors, counts, transposed ones, and rejections."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_convolutions import ROLES, SPATIAL
from naive_operations import PROPERTY, convolutions

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import CONV_LAYOUTS, Conv1d, Conv2d, Conv3d, Epilogue, read_layout

AUDIO = {"n": 2, "w": 12, "c": 6, "k": 9, "s": 3}
IMAGE = {"n": 2, "h": 10, "w": 12, "c": 6, "k": 9, "r": 3, "s": 2}
CLIP = {"n": 2, "d": 5, "h": 10, "w": 12, "c": 6, "k": 9, "t": 2, "r": 3, "s": 2}


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Conv1d(**AUDIO, stride=(2,)), "conv1d_2x12x6_3x6x9_2x5x9_f32nwc_f32wcf_f32nwc_s2_p0_d1_g1"),
        (
            Conv3d(**CLIP, layout="ncdhw", padding=(1, 0, 0)),
            "conv3d_2x6x5x10x12_9x6x2x3x2_2x9x6x8x11_f32ncdhw_f32fcdhw_f32ncdhw_s1x1x1_p1x0x0_d1x1x1_g1",
        ),
        (
            Conv2d(**IMAGE, layout="nhwc_fhwc_nhwc", padding=(1, 0), padding_after=(0, 2)),
            "conv2d_2x10x12x6_9x3x2x6_2x9x13x9_f32nhwc_f32fhwc_f32nhwc_s1x1_p1x0_q0x2_d1x1_g1",
        ),
        (
            Conv2d(**IMAGE, mode="input_backward", stride=(2, 1), epilogue=Epilogue.parse("bias")),
            "conv2d_input_backward_2x4x11x9_3x2x6x9_2x10x12x6_f32nhwc_f32hwcf_f32nhwc_s2x1_p0x0_d1x1_g1_bias",
        ),
        (
            Conv2d(**IMAGE, mode="weight_backward", layout="nchw", groups=3),
            "conv2d_weight_backward_2x9x8x11_2x6x10x12_9x2x3x2_f32nchw_f32nchw_f32fchw_s1x1_p0x0_d1x1_g3",
        ),
    ],
)
def test_a_name_tells_rank_mode_layouts_and_both_paddings(operation, name):
    assert name == operation.name


def test_the_dict_of_a_conv2d_without_new_fields_is_as_before():
    """Manifests that were written before modes existed have the same operations."""
    assert Conv2d(**IMAGE).to_dict() == {
        "kind": "conv2d", **IMAGE, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1,
        "layout": "nhwc", "types": ["f32", "f32", "f32"], "epilogue": "none",
    }  # fmt: skip


@pytest.mark.parametrize("after", [(1, 0), [1, 0]])
def test_a_padding_after_that_equals_the_padding_is_none(after):
    assert Conv2d(**IMAGE, padding=(1, 0), padding_after=after) == Conv2d(**IMAGE, padding=(1, 0))


def test_no_two_convolutions_that_differ_in_a_new_field_share_a_name():
    """Modes, layouts and both paddings, in every combination."""
    triples = ("nhwc", "nchw", "nhwc_fhwc_nhwc", "nhwc_hwcf_nchw", "nchw_fchw_nhwc", "hwnc_hwcf_nhwc")
    pads = tuple(itertools.product((0, 1), repeat=2))
    made = [
        Conv2d(
            2, 4, 4, 2, 2, 2, 2, padding=padding, padding_after=after, layout=layout, mode=mode, groups=groups
        )
        for padding, after, layout, mode, groups in itertools.product(
            pads, (None, *pads), triples, ROLES, (1, 2)
        )
    ]
    assert len(set(made)) == len({operation.name for operation in made})


def test_inputs_of_different_size_with_the_same_output_have_different_names():
    """With a stride, the gradient's shape alone does not determine the input's."""
    names = {Conv2d(1, h, 9, 2, 2, 3, 3, (2, 2), mode=mode).name for h in (9, 10) for mode in ROLES}
    assert len(names) == 6


# -- layouts ---------------------------------------------------------------------------------------


@PROPERTY
@given(convolutions())
def test_a_word_and_its_triple_are_the_same_convolution(operation):
    """Operations are compared by their layouts, not by how these were written."""
    triple = "_".join(operation.convolution.layout_of(role) for role in ("input", "filter", "output"))
    again = replace(operation, layout=triple)
    assert (again, again.name) == (operation, operation.name)
    assert ("_" in operation.layout) == (tuple(triple.split("_")) not in CONV_LAYOUTS.values())


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("NHWC_KYXC_NHWC", "nhwc_fhwc_nhwc"),
        ("nchw_kcyx_nchw", "nchw"),
        ("NDHWC_KZYXC_NDHWC", "ndhwc_fdhwc_ndhwc"),
        ("nhwc_hwcf_nhwc", "nhwc"),
        ("ncw_fcw_ncw", "ncw"),
        ("nhwc", "nhwc"),
    ],
)
def test_letters_of_miopen_are_read_as_ours(text, layout):
    assert read_layout(text) == layout


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("nhwc_fhwc_nhw", "the output layout 'nhw' lacks c"),
        ("__", "the input layout '' lacks n, c, h, w"),
        (None, "unknown convolution layout"),
    ],
)
def test_a_layout_with_wrong_letters_is_rejected(layout, message):
    with pytest.raises(OperationError) as caught:
        Conv2d(**IMAGE, layout=layout)
    assert str(caught.value).startswith(message)
    assert caught.value.hint


# -- loops and counts ------------------------------------------------------------------------------


@PROPERTY
@given(convolutions())
def test_axes_are_loops_of_the_operation(operation):
    """Loops over the result and loops of the sum; a depthwise conv2d has no loop over its one channel."""
    loops = {loop.name: loop.iterator for loop in operation.loops}
    for iterator, axes in (("parallel", operation.parallel_axes), ("reduction", operation.reduction_axes)):
        assert {loops.get(axis, iterator) for axis in axes} == {iterator}
    assert set(loops) <= {*operation.parallel_axes, *operation.reduction_axes, "g"}


def test_a_gradient_that_nothing_is_summed_into_has_one_term():
    """A filter that only ever stands on padding: every element of the gradients is zero."""
    shape = {"n": 1, "h": 1, "w": 1, "c": 1, "k": 1, "r": 1, "s": 1, "stride": (9, 9), "padding": (1, 1)}
    for mode in ("input_backward", "weight_backward"):
        operation = Conv2d(**shape, mode=mode)
        assert operation.accumulations == 1
        lhs, rhs = (np.ones(tensor.shape) for tensor in operation.operands)
        assert not operation.contract(lhs, rhs).any()


# -- transposed ------------------------------------------------------------------------------------


def test_a_transposed_convolution_is_the_gradient_of_its_mirror_image():
    found = Conv2d.transposed(
        n=1, h=28, w=28, c=16, k=8, r=3, s=3, stride=(2, 2), padding=(1, 1), output_padding=(1, 1)
    )
    mirrored = Conv2d(1, 56, 56, 8, 16, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward")
    assert found == mirrored
    assert [tensor.shape for tensor in (*found.operands, found.result)] == [
        (1, 28, 28, 16), (3, 3, 8, 16), (1, 56, 56, 8)
    ]  # fmt: skip


# -- rejections ------------------------------------------------------------------------------------


def test_data_that_is_no_mode_is_rejected():
    """The rules that a command line can break are in `tests/test_invalid_operations.py`."""
    with pytest.raises(OperationError, match=r"^conv2d has no mode None$"):
        Conv2d(**IMAGE, mode=None)


@PROPERTY
@given(st.sampled_from((Conv1d, Conv2d, Conv3d)), st.text(alphabet="ncdhwfx_ ", max_size=20))
def test_any_text_is_a_layout_or_rejected(kind, text):
    """Never another exception."""
    extents = dict.fromkeys(f"n{SPATIAL[kind][0]}ck{SPATIAL[kind][1]}", 1)
    try:
        operation = kind(**extents, layout=text)
    except OperationError:
        return
    assert operation.layout in CONV_LAYOUTS or operation.layout.count("_") == 2
