"""Convolutions of every rank: fields, names, shapes, and what they refuse."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_convolutions import ROLES, SPATIAL
from naive_operations import (
    DTYPES,
    PROPERTY,
    convolutions,
    exact_sum,
    output_shape,
    products,
    reduction_size,
    seeds,
    whole_numbers,
)

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    CONV_LAYOUTS,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    read_layout,
)

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


def conv(**changes):
    """2 images of 6 channels and 10 x 12 pixels, 9 filters of 3 x 2, unless told otherwise."""
    return Conv2d(**{**IMAGE, **changes})


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (
            conv(),
            "conv2d_2x10x12x6_3x2x6x9_2x8x11x9_f32nhwc_f32hwcf_f32nhwc_s1x1_p0x0_d1x1_g1",
        ),
        (
            conv(layout="nchw", stride=(2, 1), padding=(1, 0), dilation=(1, 3), groups=3,
                 types=ElementTypes("f16", "f16", "f32"), epilogue=Epilogue.parse("bias+relu")),
            "conv2d_2x6x10x12_9x2x3x2_2x9x5x9_f16nchw_f16fchw_f32nchw_s2x1_p1x0_d1x3_g3_bias_relu",
        ),
    ],
)  # fmt: skip
def test_a_name_tells_shapes_layouts_stride_padding_dilation_and_groups(operation, name):
    """Input, filter and output in their layouts, then everything else that decides."""
    assert name == operation.name


@PROPERTY
@given(convolutions())
def test_the_result_has_a_pixel_wherever_the_filter_can_stand(operation):
    """The closed form of the output size against counting."""
    assert output_shape(operation) == operation.result.shape


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [("nhwc", [(2, 10, 12, 6), (3, 2, 2, 9), (9,)]), ("nchw", [(2, 6, 10, 12), (9, 2, 3, 2), (9,)])],
)
def test_operands_lie_as_their_layout_says(layout, shapes):
    """Filters of 3 groups hold 2 of the 6 channels; the bias has one value a filter."""
    operation = conv(layout=layout, groups=3, epilogue=Epilogue.parse("bias"))
    assert shapes == [tensor.shape for tensor in operation.operands]


@pytest.mark.parametrize(("layout", "axis"), [("nhwc", 3), ("nchw", 1)])
def test_a_bias_lies_along_the_output_channels(layout, axis):
    """Broadcast against the result, it has one value for each of the 9 filters."""
    operation = conv(layout=layout)
    assert axis == operation.bias_axis
    assert 9 == operation.broadcast_operand(np.zeros(9)).shape[axis] == operation.result.shape[axis]


@pytest.mark.parametrize(
    ("c", "k", "groups", "form"),
    [
        (6, 9, 1, "dense"),
        (1, 1, 1, "dense"),
        (6, 9, 3, "grouped"),
        (6, 6, 6, "depthwise"),
        (6, 12, 6, "grouped"),
        (12, 6, 6, "grouped"),
    ],
)
def test_depthwise_means_one_channel_and_one_filter_a_group(c, k, groups, form):
    """A channel multiplier is a grouped convolution: linalg's depthwise form has none."""
    assert form == conv(c=c, k=k, groups=groups).variant


@pytest.mark.parametrize(
    ("layout", "groups", "loops"),
    [
        ("nhwc", 1, "n=2 oh=8 ow=11 oc=6 | kh=3 kw=2 ic=6"),
        ("nhwc", 3, "n=2 oh=8 ow=11 g=3 oc=2 | kh=3 kw=2 ic=2"),
        ("nhwc", 6, "n=2 oh=8 ow=11 oc=6 | kh=3 kw=2"),
        ("nchw", 1, "n=2 oc=6 oh=8 ow=11 | ic=6 kh=3 kw=2"),
        ("nchw", 3, "n=2 g=3 oc=2 oh=8 ow=11 | ic=2 kh=3 kw=2"),
        ("nchw", 6, "n=2 oh=8 ow=11 oc=6 | kh=3 kw=2"),
    ],
)
def test_loops_are_in_the_order_of_the_linalg_form(layout, groups, loops):
    """Parallel loops, then reductions, as linalg's named convolutions run over them."""
    operation = conv(layout=layout, groups=groups, k=6)
    sides = [
        " ".join(f"{loop.name}={loop.extent}" for loop in operation.loops if loop.iterator == iterator)
        for iterator in ("parallel", "reduction")
    ]
    assert loops == " | ".join(sides)


@PROPERTY
@given(convolutions(activations=["none"]))
def test_counts_follow_from_the_definition(operation):
    """Of a gradient too, flops are those of the forward convolution, padding included."""
    elements = math.prod(output_shape(operation))
    forward = replace(operation, mode="forward", epilogue=Epilogue())
    multiply_adds = math.prod(output_shape(forward)) * reduction_size(forward)
    assert reduction_size(operation) == operation.accumulations
    assert multiply_adds == math.prod(loop.extent for loop in forward.loops)
    assert 2 * multiply_adds + operation.epilogue.starts_with_bias * elements == operation.flops


@PROPERTY
@given(convolutions())
def test_bytes_are_each_operand_once_and_the_result_once(operation):
    """Padding is not stored, so it is not counted."""
    arrays = [np.empty(t.shape, DTYPES[t.type.name]) for t in (*operation.operands, operation.result)]
    assert sum(array.nbytes for array in arrays) == operation.bytes


@PROPERTY
@given(convolutions(pairs=[("f64", "f64")]), seeds())
def test_the_contraction_is_the_formula_at_the_top_of_the_module(operation, seed):
    """Whole numbers in float64, where both are exact."""
    lhs, rhs = whole_numbers(operation, seed)[:2]
    actual = operation.contract(lhs, rhs)
    expected = {index: exact_sum(pairs) for index, pairs in products(operation, lhs, rhs).items()}
    assert expected == {index: actual[index] for index in expected}


def test_arguments_are_those_of_the_command_line():
    """Every field stands in them, pairs as HxW."""
    operation = conv(stride=(2, 1), padding=(1, 0), dilation=(1, 3), groups=3, layout="nchw")
    shape = {f"conv-{name}": str(extent) for name, extent in IMAGE.items()}
    pairs = {"conv-stride": "2x1", "conv-padding": "1x0", "conv-dilation": "1x3", "conv-groups": "3"}
    types = {"lhs": "f32nchw", "rhs": "f32fchw", "result": "f32nchw"}
    assert {**shape, **pairs, **types} == operation.arguments()


def test_pairs_may_be_given_as_lists():
    """A list from JSON is the same convolution, and hashes as such."""
    assert hash(conv(stride=(2, 1))) == hash(conv(stride=[2, 1]))
    assert conv(stride=(2, 1)) == conv(stride=[2, 1])


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"n": 0, "s": -1}, "conv2d: every extent must be at least 1, but got n=0, s=-1", ""),
        ({"stride": (0, 1)}, "conv2d: every extent must be at least 1, but got stride_h=0", ""),
        ({"dilation": (1, 0)}, "conv2d: every extent must be at least 1, but got dilation_w=0", ""),
        ({"groups": 0}, "conv2d: every extent must be at least 1, but got groups=0", ""),
        ({"padding": (0, -1)}, "conv2d: padding must be at least 0, but got (0, -1)", ""),
        (
            {"layout": "nhcw"},
            "unknown convolution layout 'nhcw'",
            "did you mean 'nhwc'? Available: nhwc, nchw",
        ),
        (
            {"groups": 4, "k": 8},
            "groups must divide the input channels c, but got groups=4, input channels c=6",
            "valid groups: 1, 2",
        ),
        ({"groups": 2}, "groups must divide the filters k, but got groups=2, filters k=9", "valid groups: 1, 3"),
        (
            {"r": 13, "padding": (1, 0)},
            "the filter is larger than its padded input along h: 13 > 12 (filter with dilation, input with padding)",
            "use a smaller filter or dilation, or more padding",
        ),
        (
            {"s": 3, "dilation": (1, 6)},
            "the filter is larger than its padded input along w: 13 > 12 (filter with dilation, input with padding)",
            "use a smaller filter or dilation, or more padding",
        ),
        (
            {"types": ElementTypes("i8", "i8", "i32"), "epilogue": Epilogue.parse("tanh")},
            "epilogue tanh needs a floating-point result, but got i32",
            "integer results support bias, channel_scale, row_scale, scale_shift, residual, scale, relu, relu6 and clamp with whole numbers, such as bias+relu",
        ),
    ],
)  # fmt: skip
def test_a_convolution_that_does_not_exist_is_refused(changes, message, hint):
    """The message has the rule and the values; the hint has the next step where there is one."""
    with pytest.raises(OperationError) as caught:
        conv(**changes)
    assert (message, hint) == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize("field", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("value", [(1,), (1, 1, 1), (1, 1.5)])
def test_what_is_no_pair_of_whole_numbers_is_refused(field, value):
    """Stride, padding and dilation are (height, width); the message names the field."""
    with pytest.raises(OperationError, match=field):
        conv(**{field: value})


def test_a_filter_as_large_as_its_padded_input_is_accepted():
    """It stands in one place, so the result is one pixel."""
    assert conv(r=12, s=12, padding=(1, 0)).output_size == (1, 1)
