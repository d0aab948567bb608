"""Convolutions of images: geometry, layouts, forms, loops, names and rejections; properties are of every rank."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
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
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue

IMAGE = {"n": 2, "h": 10, "w": 12, "c": 6, "k": 9, "r": 3, "s": 2}


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
            "integer results support bias, scale_shift, residual, relu, relu6 and clamp with whole numbers, such as bias+relu",
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
