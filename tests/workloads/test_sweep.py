"""Sweeps: which operations they hold, of convolutions too, what is left out, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import OperationError, UsageError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    Matmul,
    SweepOptions,
)
from dispatch_profiler.operations.contraction.matmul import SPLIT_K_PROBLEMS
from dispatch_profiler.workloads import Sweep, sweep_workload

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
CONTRACTIONS = ("matmul", "batch_matmul", "conv1d", "conv2d", "conv3d")
F32 = (ElementTypes(),)
F16 = ElementTypes("f16", "f16", "f16")
I8 = ElementTypes("i8", "i8", "i32")


def product_shape(m=None, n=None, k=None, batch=None):
    """Values of the options of matmul and batch_matmul; None was not given."""
    given = {"problem_m": m, "problem_n": n, "problem_k": k, "batch_count": batch}
    return {name: values for name, values in given.items() if values is not None}


def conv_shape(extents=None, **others):
    """Values of the options of conv2d, by the names of its fields."""
    return {f"conv_{name}": values for name, values in {**(extents or {}), **others}.items()}


def sweep_of(kinds=(), matmul=None, conv=None, **options):
    shapes = {**(matmul or {}), **(conv or {})}
    return Sweep(kinds, SweepOptions(shapes=shapes, **options))


def operations(**fields):
    """The operations of a sweep of f32, nothing of which is left out."""
    result = sweep_workload(sweep_of(**{"types": F32, **fields}))
    assert result.left_out == ()
    return list(result.workload.operations)


# -- predefined ------------------------------------------------------------------------------------


def test_a_sweep_of_nothing_in_particular_holds_the_predefined_problems():
    """Six matmuls, a batch_matmul and 5, 7 and 5 convolutions, in f16 and f32 each."""
    found = sweep_workload(Sweep()).workload.operations
    kinds = [op.kind for op in found]
    assert tuple(kinds.count(kind) for kind in CONTRACTIONS) == (12, 2, 10, 14, 10)
    assert {F16, ElementTypes()} == {op.types for op in found if op.contraction}


def test_fused_problems_are_predefined_unless_something_else_is_asked_for():
    """A matmul and a conv2d with bias+relu, in f16 and f32 each; a chosen epilogue, or a shape, replaces them."""

    def fused(**fields):
        swept_ = sweep_workload(sweep_of(**fields)).workload.operations
        return [op.kind for op in swept_ if op.contraction and not op.epilogue.is_empty]

    assert fused() == ["matmul"] * 2 + ["conv2d"] * 2
    assert fused(epilogues=(Epilogue(),)) == []
    assert fused(matmul=product_shape(m=(8,))) == []


def test_the_problems_of_the_document_are_among_them():
    """Those that its tables and names show."""
    found = sweep_workload(Sweep()).workload.operations
    document = {
        Matmul(128, 128, 256, F16),
        Matmul(256, 512, 128, F16),
        Matmul(2560, 2560, 2560, F16),
        Matmul(3456, 1024, 2048, F16),
        Matmul(128, 128, 12288, F16),
        BatchMatmul(16, 512, 64, 512, F16),
    }
    assert document <= set(found)


def test_convolutions_of_every_form_are_predefined():
    """Dense, grouped and depthwise, with and without padding and stride."""
    found = operations(kinds=("conv2d",))
    assert {"dense", "grouped", "depthwise"} == {op.variant for op in found}
    assert {(1, 1), (2, 2)} == {op.stride for op in found}


def test_a_split_problem_can_be_split():
    """Each number of slices divides k."""
    assert all(k % each == 0 for (_, _, k), slices in SPLIT_K_PROBLEMS.items() for each in slices)


@pytest.mark.parametrize("kind", CONTRACTIONS)
def test_a_kind_that_is_asked_for_comes_alone(kind):
    """With its predefined problems."""
    assert {kind} == {op.kind for op in operations(kinds=(kind,))}


def test_kinds_come_in_the_order_in_which_they_are_asked_for():
    """Which is that of the tree."""
    kinds = [op.kind for op in operations(kinds=("conv2d", "matmul"))]
    assert list(dict.fromkeys(kinds)) == ["conv2d", "matmul"]


def test_every_entry_comes_from_the_sweep_once():
    """There are no logs behind it that could count."""
    entries = sweep_workload(Sweep()).workload.entries
    assert {(1, "sweep")} == {(entry.count, entry.origin) for entry in entries}


# -- given shapes ----------------------------------------------------------------------------------


def test_given_extents_replace_the_predefined_problems():
    """What was not given is 256; nothing predefined is left, of this kind or another."""
    assert [Matmul(64, 256, 256), Matmul(128, 256, 256)] == operations(matmul=product_shape(m=(64, 128)))
    assert [Matmul(256, 8, 16)] == operations(matmul=product_shape(n=(8,), k=(16,)))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((1,), [Matmul(2, 3, 4)]),
        ((16,), [BatchMatmul(16, 2, 3, 4)]),
        ((1, 16), [BatchMatmul(1, 2, 3, 4), BatchMatmul(16, 2, 3, 4)]),
    ],
)
def test_a_batch_count_above_one_means_batch_matmul(batch, expected):
    """A count of 1 stands in the arguments of every matmul."""
    assert expected == operations(matmul=product_shape((2,), (3,), (4,), batch))


def test_a_batch_of_one_can_be_asked_for():
    """By the kind's name."""
    sweep = {"matmul": product_shape((2,), (3,), (4,)), "kinds": ("batch_matmul",)}
    assert [BatchMatmul(1, 2, 3, 4)] == operations(**sweep)
    both = operations(matmul=product_shape((2,), (3,), (4,), (1, 5)), kinds=("matmul", "batch_matmul"))
    assert [Matmul(2, 3, 4), BatchMatmul(1, 2, 3, 4), BatchMatmul(5, 2, 3, 4)] == both


def test_given_extents_of_a_convolution_replace_the_predefined_ones():
    """What was not given is one image of 56 x 56 with 64 channels, 64 filters of 3 x 3, stride 1."""
    found = operations(conv=conv_shape({"c": (8, 16)}, padding=((0, 0), (1, 1))))
    assert [
        Conv2d(1, 56, 56, c, 64, 3, 3, padding=padding)
        for c, padding in itertools.product((8, 16), ((0, 0), (1, 1)))
    ] == found


@pytest.mark.parametrize(
    ("given_", "field", "value"),
    [
        ({"stride": ((2, 1),)}, "stride", (2, 1)),
        ({"padding": ((0, 0),)}, "padding", (0, 0)),
        ({"dilation": ((2, 2),)}, "dilation", (2, 2)),
        ({"groups": (4,)}, "groups", 4),
    ],
)
def test_a_stride_alone_is_a_shape(given_, field, value):
    """So are padding, dilation and groups: one convolution with the usual extents."""
    (operation,) = operations(conv=conv_shape(**given_))
    assert value == getattr(operation, field)
    assert (operation.n, operation.h, operation.w, operation.c, operation.k) == (1, 56, 56, 64, 64)


def test_shapes_of_two_kinds_give_both():
    """And nothing predefined."""
    found = operations(matmul=product_shape(m=(2,)), conv=conv_shape({"n": (4,)}))
    assert [Matmul(2, 256, 256), Conv2d(4, 56, 56, 64, 64, 3, 3)] == found


ints = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple)


@PROPERTY
@given(
    ints, ints, ints, st.lists(st.sampled_from(["tt", "nt", "tn"]), min_size=1, unique=True), st.booleans()
)
def test_a_sweep_is_the_cross_product_of_all_that_was_given(m, n, k, layouts, with_bias):
    """Every combination once."""
    epilogues = (Epilogue(), Epilogue.parse("bias+relu")) if with_bias else (Epilogue(),)
    types = (*F32, F16, I8)
    found = operations(
        matmul=product_shape(m, n, k), layouts=tuple(map(tuple, layouts)), types=types, epilogues=epilogues
    )
    expected = {
        Matmul(*shape, type_, *layout, epilogue)
        for shape in itertools.product(m, n, k)
        for type_, layout, epilogue in itertools.product(types, layouts, epilogues)
    }
    assert expected == set(found)
    assert len(expected) == len(found)


def test_convolutions_cross_their_own_layouts():
    """Those of a matmul mean nothing to them."""
    found = operations(conv=conv_shape({"n": (1,)}), conv_layouts=("nhwc", "nchw"), layouts=(("n", "n"),))
    assert [op.layout for op in found] == ["nhwc", "nchw"]


# -- left out and refused --------------------------------------------------------------------------


def test_a_point_that_is_no_operation_is_left_out_with_its_reason():
    """The others are kept."""
    conv = conv_shape({"h": (2, 9), "w": (9,), "r": (3,)}, groups=(1, 3))
    result = sweep_workload(sweep_of(conv=conv, types=F32))
    assert (Conv2d(1, 9, 9, 64, 64, 3, 3),) == result.workload.operations
    larger = (
        "the filter is larger than its padded input along h: 3 > 2 (filter with dilation, input with padding)"
    )
    uneven = "groups must divide the input channels c, but got groups=3, input channels c=64"
    assert (larger, uneven, uneven) == result.left_out


def test_an_epilogue_that_a_type_does_not_take_is_left_out():
    """gelu of integers is no operation, gelu of f32 is."""
    sweep = sweep_of(
        matmul=product_shape(m=(2,)), types=(*F32, I8), epilogues=(Epilogue(), Epilogue.parse("gelu"))
    )
    result = sweep_workload(sweep)
    assert len(result.workload.operations) == 3
    assert result.left_out == ("epilogue gelu needs a floating-point result, but got i32",)


def test_a_sweep_without_any_operation_is_refused_with_the_first_reason():
    """And with its hint."""
    with pytest.raises(
        OperationError, match="the filter is larger than its padded input along h: 3 > 2"
    ) as caught:
        sweep_workload(sweep_of(conv=conv_shape({"h": (2, 1)})))
    assert caught.value.hint == "use a smaller filter or dilation, or more padding"


def test_shapes_of_a_kind_that_is_not_asked_for_are_refused():
    """Leaving them out in silence would generate something else than was asked for."""
    with pytest.raises(
        UsageError, match=r"^shapes of matmul or batch_matmul were given, but the requested kinds are conv2d$"
    ):
        sweep_workload(sweep_of(kinds=("conv2d",), matmul=product_shape(m=(2,))))
    message = (
        "^shapes of conv1d or conv2d or conv3d were given, but the requested kinds are matmul, batch_matmul$"
    )
    with pytest.raises(UsageError, match=message):
        sweep_workload(sweep_of(kinds=("matmul", "batch_matmul"), conv=conv_shape({"n": (2,)})))


def test_shapes_of_a_kind_that_is_asked_for_among_others_are_taken():
    """The others come with their predefined problems."""
    found = operations(kinds=("matmul", "conv2d"), matmul=product_shape(m=(2,)))
    assert Matmul(2, 256, 256) == found[0]
    assert {"conv2d"} == {op.kind for op in found[1:]}


def test_a_batch_count_for_plain_matmuls_is_refused():
    """A request for matmul with 16 batches does not mean one batch."""
    with pytest.raises(UsageError, match="batch"):
        sweep_workload(sweep_of(kinds=("matmul",), matmul=product_shape(m=(2,), batch=(16,))))


def test_an_unknown_kind_is_refused_with_the_nearest():
    """In a call from Python as on the command line."""
    with pytest.raises(UsageError, match="'matmull'") as caught:
        sweep_workload(sweep_of(kinds=("matmull",)))
    assert "'matmul'" in caught.value.hint


@pytest.mark.parametrize("field", ["types", "layouts", "epilogues"])
def test_a_sweep_over_nothing_is_refused(field):
    """No types, or no layouts, or no epilogues: there is no point, and no reason to raise."""
    with pytest.raises(UsageError):
        sweep_workload(sweep_of(kinds=("matmul",), **{field: ()}))


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
