"""Forms of convolutions and products: their steps compute what the operation does, and their configurations say so."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from form_interpreter import sums_of

from dispatch_profiler.configurations import (
    FORMS,
    CpuTiles,
    Default,
    Extern,
    Flow,
    Formed,
    Limits,
    configuration_from_dict,
    load_configurations,
    rejection_reason,
    report_columns,
    spaces,
)
from dispatch_profiler.configurations.forms import reduction_of
from dispatch_profiler.configurations.forms.convolutions import PhaseGroup, phase_groups, phases_along
from dispatch_profiler.configurations.forms.forward import rounded
from dispatch_profiler.errors import ConfigurationError, OperationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Contraction,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ElementTypes,
    Epilogue,
    Matmul,
    PanelMatmul,
)

MODES = ("forward", "input_backward", "weight_backward")
LAYOUTS = {
    1: ("nwc", "ncw", "nwc_fwc_nwc", "cwn_wfc_ncw"),
    2: ("nhwc", "nchw", "nhwc_fhwc_nhwc", "nchw_hwcf_nhwc", "hcwn_cwfh_wnch"),
    3: ("ndhwc", "ncdhw", "ndhwc_fdhwc_ndhwc", "dnhcw_cdfwh_hncdw"),
}
FHWC = "nhwc_fhwc_nhwc"
TILES = CpuTiles((4, 4), (2, 4, 2))


def formed(operation: Convolution) -> list[str]:
    """The forms that `operation` has."""
    return [name for name, form in FORMS.items() if form.invalid_reason(operation) is None]


def computes(form: str, operation: Contraction, rng: np.random.Generator) -> bool:
    """Whether the steps of `form` give the sums of `operation`: of integers, so that they are exact.

    A form with transforms may round them in float64.
    """
    lhs, rhs = (rng.integers(-4, 5, tensor.shape).astype(np.float64) for tensor in operation.operands[:2])
    reduction = reduction_of(form, operation)
    found, expected = sums_of(reduction, lhs, rhs), operation.contract(lhs, rhs)
    if reduction.error_bound is None:
        return np.array_equal(found, expected)
    return np.allclose(found, expected, rtol=0.0, atol=1e-10)


def drawn(rng: np.random.Generator) -> Convolution | None:
    """A random convolution; None if these parameters make none."""

    def some(*choices):
        return choices[int(rng.integers(len(choices)))]

    rank = some(1, 2, 3)
    kind = {1: Conv1d, 2: Conv2d, 3: Conv3d}[rank]
    c, k, groups = some((1, 1, 1), (3, 2, 1), (4, 6, 2), (3, 3, 3), (2, 4, 2))
    sizes = [int(rng.integers(1, 7)) for _ in range(2 * rank)]
    extents = dict(zip(kind.extent_names(), (some(1, 2), *sizes[:rank], c, k, *sizes[rank:]), strict=True))
    stride, dilation, before, after = (
        tuple(int(rng.integers(low, high)) for _ in range(rank))
        for low, high in ((1, 4), (1, 4), (0, 4), (0, 4))
    )
    if some(True, False):
        stride = (1,) * rank
    try:
        return kind(
            **extents, stride=stride, padding=before, dilation=dilation, groups=groups,
            layout=some(*LAYOUTS[rank]), padding_after=after, mode=some(*MODES),
        )  # fmt: skip
    except OperationError:
        return None


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
def test_the_steps_of_every_form_compute_the_convolution(seed):
    """150 random convolutions of every rank, mode, layout, stride, dilation, padding and grouping."""
    rng, tried = np.random.default_rng(seed), 0
    while tried < 150:
        operation = drawn(rng)
        if operation is not None:
            tried += 1
            for form in formed(operation):
                assert computes(form, operation, rng), (form, operation)


@pytest.mark.parametrize(
    ("kind", "extents"),
    [
        (Conv1d, (2, 7, 96, 96, 3)),
        (Conv2d, (2, 4, 5, 96, 128, 3, 2)),
        (Conv3d, (1, 2, 3, 4, 64, 96, 2, 3, 3)),
    ],
)
def test_blocks_of_filters_compute_the_convolution(kind, extents):
    """96 filters are three blocks of 32, 128 filters two of 64; in gradients, these are channels."""
    rng, rank = np.random.default_rng(1), kind.rank
    for layout, stride, mode in itertools.product(LAYOUTS[rank], (1, 2), ("forward", "input_backward")):
        operation = kind(*extents, stride=(stride,) * rank, padding=(1,) * rank, layout=layout, mode=mode)
        reason = FORMS["blocked"].invalid_reason(operation)
        if operation.convolution.channels == 64 and mode == "input_backward":
            assert reason is not None and "more than one block" in reason
        else:
            assert computes("blocked", operation, rng), operation


@pytest.mark.some(2)
@pytest.mark.parametrize("mode", MODES)
def test_unit_extents_move_freely(mode):
    """Axes of extent 1 anywhere: an image of one pixel, a batch of one, a filter of one tap."""
    rng = np.random.default_rng(1)
    for n, h, w, c, k, layout in itertools.product((1, 2), (1, 3), (1, 3), (1, 2), (1, 2), LAYOUTS[2]):
        operation = Conv2d(n, h, w, c, k, 1, 1, layout=layout, mode=mode)
        for form in formed(operation):
            assert computes(form, operation, rng), (form, operation)


@pytest.mark.parametrize("layouts", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("extents", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1), (64, 96, 5)])
def test_forms_of_products_compute_the_product(extents, layouts):
    rng, fields = np.random.default_rng(1), dict(zip(("lhs_layout", "rhs_layout"), layouts, strict=True))
    for operation in (Matmul(*extents, **fields), *(BatchMatmul(b, *extents, **fields) for b in (1, 2))):
        for form in formed(operation):
            assert computes(form, operation, rng), (form, operation)


def test_which_forms_a_product_has():
    """Panels need several of 32 rows or columns; rhs in layout n is what is permuted."""
    every = ["permuted", "transposed", "transposed_panels", "panels"]
    assert formed(Matmul(64, 96, 8, rhs_layout="n")) == every
    assert formed(Matmul(64, 96, 8, lhs_layout="n", rhs_layout="n")) == every
    assert formed(Matmul(64, 96, 8)) == ["panels"]
    assert formed(Matmul(32, 32, 8, rhs_layout="n")) == ["permuted", "transposed"]
    assert formed(Matmul(48, 64, 8, rhs_layout="n")) == ["permuted", "transposed", "panels"]
    assert formed(BatchMatmul(2, 64, 96, 8, rhs_layout="n")) == ["permuted", "transposed"]
    assert formed(BatchMatmul(2, 64, 96, 8)) == formed(Matmul(8, 8, 8)) == []


@pytest.mark.parametrize(
    ("form", "kernel", "lhs", "rhs"),
    [
        ("transposed", Matmul(96, 64, 32), "rhs", "stored_columns"),
        ("transposed_panels", PanelMatmul(96, 2, 32, 32), "rhs", "stored_columns"),
        ("panels", PanelMatmul(64, 3, 32, 32), "lhs", "stored_columns"),
        ("permuted", Matmul(64, 96, 32), "lhs", "stored_columns"),
    ],
)
def test_a_form_of_a_product_moves_only_one_operand(form, kernel, lhs, rhs):
    """Weights, many times larger than the rows of lhs, are read as they are stored by the transposed forms."""
    reduction = reduction_of(form, Matmul(64, 96, 32, rhs_layout="n"))
    assert reduction.kernels == (kernel,)
    (step,) = (step for step in reduction.steps if step.kind == "kernel")
    assert (step.lhs.name, step.rhs.name) == (lhs, rhs)


@pytest.mark.parametrize(
    ("epilogue", "is_stored"), [("none", False), ("relu", False), ("bias", True), ("relu+residual", True)]
)
@pytest.mark.parametrize(
    ("form", "operation"),
    [
        ("transposed", Matmul(64, 96, 8, rhs_layout="n")),
        ("transposed_panels", Matmul(64, 96, 8, rhs_layout="n")),
        ("im2col_t", Conv2d(1, 8, 8, 4, 4, 3, 3)),
    ],
)
def test_a_transposed_result_is_stored_before_an_epilogue_reads_other_operands(
    form, operation, epilogue, is_stored
):
    """The compiler would fuse them into a transposition without vectors."""
    reduction = reduction_of(form, replace(operation, epilogue=Epilogue.parse(epilogue)))
    assert reduction.sums.name.startswith("stored_") == is_stored


def test_a_result_whose_last_axis_stays_is_permuted_with_its_epilogue():
    operation = Conv2d(1, 8, 8, 4, 128, 3, 3, epilogue=Epilogue.parse("bias"))
    assert "stored" not in reduction_of("blocked", operation).sums.name


@pytest.mark.parametrize("form", ["panels", "transposed_panels"])
def test_panels_are_for_cpus(form):
    operation = Matmul(64, 96, 32, rhs_layout="n")
    assert Formed(form).invalid_reason(operation, Limits(backend="llvm-cpu")) is None
    reason = f"the form {form} is for llvm-cpu, but the target is cuda"
    assert Formed(form).invalid_reason(operation, Limits(backend="cuda")) == reason
    searched = {space.form for space in spaces(operation, Limits(backend="cuda")) if space.kind is Formed}
    assert form not in searched


def test_phases_with_equally_many_taps_are_one_group():
    """Tap t reaches phase t % stride."""
    for taps, stride in itertools.product(range(1, 9), range(1, 9)):
        counts = [len(range(phase, taps, stride)) for phase in range(stride)]
        found = phase_groups(taps, stride)
        assert [each.taps for each in found for _ in range(each.count)] == [each for each in counts if each]
        assert len(found) <= 2
    assert phase_groups(4, 3) == [PhaseGroup(0, 1, 2), PhaseGroup(1, 2, 1)]


def test_many_phases_are_few_kernels():
    for taps, kernels in ((8, 1), (3, 1), (9, 4), (17, 4)):
        operation = Conv2d(1, 20, 20, 3, 5, taps, taps, stride=(8, 8), mode="input_backward", padding=(1, 1))
        assert len(reduction_of("shuffled", operation).kernels) == kernels


def test_which_forms_an_operation_has():
    def of(**fields) -> list[str]:
        return formed(Conv2d(1, 8, 8, 4, 4, 3, 3, **fields))

    products, others = ["im2col", "im2col_t", "im2col_t32"], ["kn2row", "winograd", "winograd_2"]
    assert of() == [*products, *others]
    assert of(layout="nchw") == of(layout=FHWC) == ["permuted", *products, *others]
    assert of(mode="weight_backward") == ["im2col", "im2col_t", "taps"]
    assert of(mode="weight_backward", stride=(2, 1)) == ["im2col", "im2col_t"]
    assert of(mode="input_backward") == ["permuted", *products[:2], *others]  # of 64 pixels
    assert of(mode="input_backward", stride=(1, 2)) == ["phases", "shuffled", *products]
    assert of(groups=2) == ["per_group", *products, "kn2row"]
    assert of(groups=4) == products
    assert of(groups=2, mode="weight_backward") == ["im2col", "im2col_t"]
    ranks = [formed(Conv1d(1, 8, 4, 4, 3)), formed(Conv3d(1, 3, 8, 8, 4, 4, 3, 3, 3))]
    assert ranks == [["permuted", *products, "kn2row"]] * 2


@pytest.mark.parametrize(
    ("form", "operation", "reason"),
    [
        ("im2col", Matmul(8, 8, 8), "the form im2col is for convolutions, not matmul"),
        ("transposed", Conv2d(1, 8, 8, 4, 4, 3, 3), "the form transposed is for matrix products, not conv2d"),
        (
            "transposed",
            Matmul(8, 8, 8, lhs_layout="n"),
            "the form transposed is for products whose rhs is stored as n x k, in layout n",
        ),
        (
            "permuted",
            Matmul(8, 8, 8),
            "the form permuted is for products whose rhs is stored as n x k, in layout n",
        ),
        (
            "panels",
            Matmul(8, 80, 8),
            "the form panels needs a multiple of 32 columns and more than 32 of them, not 80",
        ),
        (
            "transposed_panels",
            Matmul(32, 64, 8, rhs_layout="n"),
            "the form transposed_panels needs a multiple of 32 rows and more than 32 of them, not 32",
        ),
        (
            "panels",
            BatchMatmul(2, 64, 64, 8),
            "the form panels is for matmul, not for batch_matmul",
        ),
        (
            "permuted",
            Conv2d(1, 8, 8, 4, 4, 3, 3),
            "the form permuted is for other convolutions than forward conv2d in nhwc",
        ),
        (
            "permuted",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="weight_backward"),
            "the form permuted is not for weight_backward: use taps, im2col or im2col_t",
        ),
        (
            "permuted",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="input_backward", stride=(2, 1)),
            "the form permuted is not for input_backward with stride 2x1: use phases",
        ),
        (
            "shuffled",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="input_backward"),
            "the form shuffled is for input_backward with a stride above 1 and dilation 1, not for stride 1x1",
        ),
        (
            "shuffled",
            Conv2d(1, 8, 8, 4, 4, 3, 3, stride=(2, 2), dilation=(2, 1), mode="input_backward"),
            "the form shuffled is for input_backward with a stride above 1 and dilation 1, not for dilation 2x1",
        ),
        (
            "kn2row",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="weight_backward"),
            "the form kn2row is not for weight_backward: use taps, im2col or im2col_t",
        ),
        (
            "kn2row",
            Conv2d(1, 8, 8, 4, 4, 3, 3, stride=(1, 2)),
            "the form kn2row is for stride 1, not 1x2",
        ),
        (
            "kn2row",
            Conv2d(1, 8, 8, 4, 4, 3, 3, groups=4),
            "the form kn2row is for sums over channels, but there is one in a group",
        ),
        (
            "kn2row",
            Conv2d(1, 8, 8, 4, 17, 3, 3),
            "the form kn2row is for at most 16 filters in a group, not 17",
        ),
        (
            "kn2row",
            Conv2d(1, 8, 8, 17, 4, 3, 3, mode="input_backward"),
            "the form kn2row is for at most 16 channels of a gradient in a group, not 17",
        ),
        ("kn2row", Conv2d(1, 8, 8, 4, 4, 1, 1), "the form kn2row is for 2 to 64 taps, not 1"),
        (
            "blocked",
            Conv2d(1, 8, 8, 4, 72, 3, 3),
            "the form blocked needs a multiple of 32 filters and more than one block of them, not 72",
        ),
        (
            "blocked",
            Conv2d(1, 8, 8, 64, 128, 3, 3, mode="input_backward"),
            "the form blocked needs a multiple of 32 channels and more than one block of them, not 64",
        ),
        (
            "blocked",
            Conv2d(1, 8, 8, 4, 2112, 3, 3),
            "the form blocked would have up to 33 kernels, but at most 32 are allowed",
        ),
        (
            "blocked",
            Conv2d(1, 8, 8, 128, 128, 3, 3, groups=2),
            "the form blocked is for convolutions without groups, but this one is grouped",
        ),
        (
            "blocked",
            Conv2d(1, 8, 8, 128, 128, 3, 3, mode="weight_backward"),
            "the form blocked is not for weight_backward: use taps, im2col or im2col_t",
        ),
        (
            "im2col_t32",
            Conv2d(1, 8, 8, 4, 4, 3, 3, padding=(1, 1)),
            "the form im2col_t32 is not for 64 pixels, a multiple of 32: use im2col_t",
        ),
        (
            "im2col_t32",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="weight_backward"),
            "the form im2col_t32 is not for weight_backward: use taps, im2col or im2col_t",
        ),
        (
            "taps",
            Conv2d(1, 8, 8, 4, 4, 3, 3),
            "the form taps is for weight_backward with stride 1 and without groups, not for forward",
        ),
        (
            "taps",
            Conv2d(1, 8, 8, 4, 4, 3, 3, stride=(1, 2), mode="weight_backward"),
            "the form taps is for weight_backward with stride 1 and without groups, not for stride 1x2",
        ),
        (
            "taps",
            Conv2d(1, 8, 8, 4, 4, 3, 3, groups=2, mode="weight_backward"),
            "the form taps is for weight_backward with stride 1 and without groups, not for grouped",
        ),
        (
            "taps",
            Conv2d(1, 8, 8, 4, 4, 6, 6, mode="weight_backward"),
            "the form taps would have up to 36 kernels, but at most 32 are allowed",
        ),
        (
            "phases",
            Conv2d(1, 8, 8, 4, 4, 3, 3, mode="input_backward"),
            "the form phases is for input_backward with a stride above 1, not for stride 1x1",
        ),
        (
            "phases",
            Conv2d(1, 8, 8, 4, 4, 3, 3, stride=(2, 2)),
            "the form phases is for input_backward with a stride above 1, not for forward",
        ),
        (
            "phases",
            Conv2d(1, 1, 1, 1, 1, 1, 1, stride=(9, 9), padding=(1, 1), mode="input_backward"),
            "no pixel of the output reads the input, so that every element of the result is 0",
        ),
        (
            "per_group",
            Conv2d(1, 8, 8, 4, 4, 3, 3, groups=4),
            "the form per_group is for several groups, but this convolution is depthwise",
        ),
        (
            "per_group",
            Conv2d(1, 8, 8, 32, 16, 3, 3, groups=16, stride=(3, 1), mode="input_backward"),
            "the form per_group would have up to 48 kernels, but at most 32 are allowed",
        ),
        (
            "per_group",
            Conv2d(1, 8, 8, 8, 4, 3, 3, groups=2, mode="weight_backward"),
            "the form per_group is not for weight_backward: use taps, im2col or im2col_t",
        ),
        (
            "im2col",
            Conv2d(1, 1, 4, 1, 1, 1, 1, stride=(9, 1), padding=(1, 0)),
            "no pixel of the output reads the input, so that every element of the result is 0",
        ),
    ],
)
def test_why_an_operation_does_not_have_a_form(form, operation, reason):
    assert Formed(form).invalid_reason(operation, Limits()) == reason


# -- what the steps are ------------------------------------------------------------------------------


def kinds_of(form: str, operation: Convolution) -> list[str]:
    return [step.kind for step in reduction_of(form, operation).steps]


def test_an_fhwc_filter_is_read_as_it_is_by_im2col():
    """Only the image is gathered; a pointwise convolution moves nothing at all."""
    assert kinds_of("im2col", Conv2d(1, 8, 8, 4, 4, 3, 3, layout=FHWC)).count("gather") == 1
    pointwise = Conv2d(2, 8, 8, 4, 4, 1, 1, layout=FHWC)
    assert set(kinds_of("im2col", pointwise)) == {"reshape", "kernel"}
    (kernel,) = reduction_of("im2col", pointwise).kernels
    assert kernel == Matmul(128, 4, 4, rhs_layout="n")


def test_the_transposed_product_of_an_image_in_nchw_moves_only_the_image():
    """Its result, filters x pixels, is the result in nchw."""
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, layout="nchw")
    assert kinds_of("im2col_t", operation).count("gather") == 1
    assert reduction_of("im2col_t", operation).kernels == (Matmul(6, 36, 36),)


def test_a_permutation_is_stored_before_a_kernel_reads_it():
    """The compiler would fuse it into the kernel, which makes that slow."""
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, layout="nchw", padding=(1, 1))
    assert kinds_of("permuted", operation) == [
        "gather", "barrier", "gather", "barrier", "kernel", "barrier", "gather"
    ]  # fmt: skip
    assert reduction_of("permuted", operation).kernels == (Conv2d(1, 8, 8, 4, 6, 3, 3, padding=(1, 1)),)


def test_groups_become_a_batch():
    (kernel,) = reduction_of("im2col", Conv2d(1, 8, 8, 8, 12, 3, 3, groups=4)).kernels
    assert (kernel.kind, kernel.problem) == ("batch_matmul", "4x36x3x18")


def test_each_group_has_a_convolution():
    operation = Conv2d(1, 8, 8, 8, 12, 3, 3, padding=(1, 1), groups=4)
    assert reduction_of("per_group", operation).kernels == (Conv2d(1, 10, 10, 2, 3, 3, 3),) * 4


def test_pixels_are_rounded_up_to_vectors():
    """The image has a wider border, and the result is cut: 7x7 pixels are computed as 8x8."""
    operation = Conv2d(1, 7, 7, 8, 16, 3, 3, padding=(1, 1), layout=FHWC)
    assert reduction_of("im2col_t32", operation).kernels == (Matmul(16, 64, 72),)
    assert [rounded(n, output) for n, output in ((2, (14, 14)), (1, (2, 5, 5)), (1, (50,)))] == [
        (14, 16), (2, 6, 8), (64,)
    ]  # fmt: skip


def test_each_block_of_filters_has_a_convolution():
    """Results of blocks lie one after another, so that kernels store them in place; one permutation follows."""
    operation = Conv2d(1, 8, 8, 8, 192, 3, 3, padding=(1, 1), layout=FHWC)
    assert reduction_of("blocked", operation).kernels == (Conv2d(1, 8, 8, 8, 64, 3, 3, padding=(1, 1)),) * 3
    *_, interleave, _barrier, gather, _reshape = reduction_of("blocked", operation).steps
    assert (interleave.kind, interleave.result.shape) == ("interleave", (3, 1, 8, 8, 64))
    assert (gather.kind, gather.result.shape) == ("gather", (1, 8, 8, 3, 64))


def test_each_tap_of_a_filter_gradient_has_a_product_of_parts_that_are_stored():
    """Parts of the padded image, and of the gradient with zeros after each row: nothing is copied for a tap."""
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, padding=(1, 1), layout=FHWC, mode="weight_backward")
    pixels = 10 * 10 - (2 * 10 + 2)
    assert reduction_of("taps", operation).kernels == (Matmul(6, 4, pixels, lhs_layout="n"),) * 9
    assert kinds_of("taps", operation).count("gather") == 1  # of the sums, into fhwc


def test_the_reversed_filter_of_a_gradient_is_copied_tap_by_tap():
    """A loop nest over falling indices would not be vectorized."""
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, padding=(1, 1), layout=FHWC, mode="input_backward")
    steps = reduction_of("permuted", operation).steps
    crops = [step.offsets for step in steps if step.kind == "crop"]  # for each tap along kh, then along kw
    taps = [(along_h[1], along_w[2]) for along_h, along_w in zip(crops[::2], crops[1::2], strict=True)]
    assert taps == list(itertools.product((2, 1, 0), repeat=2))


def test_kernels_sum_in_the_accumulator_of_the_operation():
    """Without rounding in between, so that the operation's error bound holds."""
    half = ElementTypes("f16", "f16", "f16")
    (kernel,) = reduction_of("im2col", Conv2d(1, 8, 8, 8, 8, 3, 3, types=half)).kernels
    assert kernel.types == ElementTypes("f16", "f16", "f32")
    assert kernel.epilogue.is_empty


def test_a_strided_gradient_has_a_kernel_for_each_phase():
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward")
    kernels = reduction_of("phases", operation).kernels
    assert [(kernel.r, kernel.s, kernel.c) for kernel in kernels] == [
        (1, 1, 6), (1, 1, 12), (1, 1, 12), (2, 2, 6)
    ]  # fmt: skip
    assert sum(kernel.flops for kernel in kernels) == operation.flops


def test_a_filter_of_one_row_or_column_is_gathered_into_channels():
    """The code generator has fast convolutions for several rows and columns, and for a single tap."""
    for taps, channels in (((1, 3), 12), ((3, 1), 12), ((3, 3), 4), ((1, 1), 4)):
        (kernel,) = reduction_of("permuted", Conv2d(1, 8, 8, 4, 6, *taps, layout=FHWC)).kernels
        assert kernel.c == channels


def test_the_phases_along_an_axis():
    """Even pixels take tap 1 of three, odd ones taps 0 and 2; with one tap, odd pixels take nothing."""
    even, odd = phases_along(8, 4, 3, 2, 1, 1)
    assert (even.start, even.extent, even.taps, even.padding) == (0, 4, (1,), (0, 0))
    assert (odd.start, odd.extent, odd.taps, odd.padding) == (1, 4, (0, 2), (0, 1))
    assert [phase.start for phase in phases_along(8, 4, 1, 2, 0, 1)] == [0]


# -- configurations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        (Formed("permuted"), "tile_config_permuted_default"),
        (Formed("im2col", TILES), "tile_config_im2col_4x4_2x4x2"),
        (Formed("im2col_t", Default(4)), "tile_config_im2col_t_default_splitk4"),
        (Formed("winograd", TILES), "tile_config_winograd_4x4_2x4x2"),
        (Formed("winograd_2", Flow("data_tiling")), "tile_config_winograd_2_data_tiling"),
        (Formed("im2col", Flow("data_tiling")), "tile_config_im2col_data_tiling"),
    ],
)
def test_a_form_is_part_of_the_name_and_read_back_from_a_manifest(configuration, name):
    assert configuration.name == name
    assert configuration_from_dict(json.loads(json.dumps(configuration.to_dict()))) == configuration
    assert hash(configuration) == hash(configuration_from_dict(configuration.to_dict()))


def test_a_form_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "configurations:\n"
        "  - {form: permuted}\n"
        "  - {form: im2col, kinds: [conv2d], distribution: [4, 4], vector: [2, 4, 2]}\n"
        "  - {form: im2col_t, default: true, split_k: 4}\n"
        "  - {form: im2col, flow: data_tiling}\n"
        "  - {form: winograd, distribution: [4, 4], vector: [2, 4, 2]}\n"
        "  - {form: winograd_2}\n"
    )
    found = [each.configuration for each in load_configurations(path)]
    assert found == [
        Formed("permuted"), Formed("im2col", TILES), Formed("im2col_t", Default(4)), Formed("im2col", Flow("data_tiling")),
        Formed("winograd", TILES), Formed("winograd_2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{form: im2colt}", "unknown form 'im2colt'"),
        ("{form: [im2col]}", "unknown form"),
        ("{form: im2col, split_k: 2}", "'form' with 'split_k' also needs one of default, distribution, flow"),
        ("{form: im2col, distribution: [4, 4], vector: [2, 4, 2], flow: ukernels}", "unknown key 'flow'"),
        ("{form: im2col, distribution: [4, 4], vector: [2, 4, 2], warps: 4}", "unknown key 'warps'"),
        ("{form: im2col, triton: [64, 64, 64]}", "unknown key 'form'"),
        ("{form: im2col, distribution: [4, 4]}", "'distribution' also needs 'vector'"),
    ],
)
def test_a_mistake_in_an_entry_is_named(tmp_path, entry, message):
    path = tmp_path / "mine.yaml"
    path.write_text(f"configurations: [{entry}]")
    with pytest.raises(ConfigurationError, match=r"mine\.yaml, entry 1: ") as caught:
        load_configurations(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "inner",
    [
        Formed("im2col"),
        Extern(label="mine", object="k.ptx", entry="k", workgroups=(1,), workgroup_size=(32,)),
    ],
)
def test_forms_and_external_kernels_do_not_configure_kernels(inner):
    with pytest.raises(ConfigurationError, match="cannot configure the kernels of a form"):
        Formed("im2col", inner)


def test_invalid_tiles_are_those_of_a_kernel():
    """The reason names the kernel, and the rule of the inner configuration."""
    operation = Conv2d(1, 8, 8, 4, 6, 3, 3, layout=FHWC)
    reason = Formed("im2col", TILES).invalid_reason(operation, Limits())
    kernel = "matmul_36x6x36_f32t_f32n_f32t"
    assert reason == f"the kernel {kernel} of im2col: vector tile 4 does not divide n=6, and peel is off"


def test_tiles_must_fit_every_kernel():
    """Of the phases of a strided gradient, one has a single tap along each axis."""
    operation = Conv2d(1, 8, 8, 4, 8, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward")
    tiles = {taps: CpuTiles((1, 4, 4, 4), (1, 1, 2, 4, 1, taps, 4)) for taps in (1, 2)}
    assert Formed("phases", tiles[1]).invalid_reason(operation, Limits()) is None
    assert "vector tile 2 exceeds kw=1" in Formed("phases", tiles[2]).invalid_reason(operation, Limits())


def test_tiles_are_requested_for_every_kernel():
    operation = Conv2d(1, 8, 8, 4, 8, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward")
    configuration = Formed("phases", CpuTiles((1, 4, 4, 4), (1, 1, 2, 4, 1, 1, 4)))
    assert len(configuration.lowerings(operation)) == 4
    assert configuration.lowering(operation) is None


def test_a_form_has_its_column():
    assert "form" in report_columns()
    assert Formed("im2col", TILES).fields() == {"form": "im2col", **TILES.fields()}


def test_a_flow_of_a_form_has_a_module_of_its_own():
    """Evidence of a flow is looked for in its module: that of another form would prove nothing."""
    first, second = (Formed(form, Flow("data_tiling")) for form in ("im2col", "im2col_t"))
    assert first.flags == Flow("data_tiling").flags
    assert len({first.module, second.module, Flow("data_tiling").module}) == 3
    assert Formed("im2col", TILES).module == ""


# -- search spaces -----------------------------------------------------------------------------------


def test_every_form_of_an_operation_is_searched_with_every_kind_of_its_kernels():
    operation = Conv2d(1, 16, 16, 8, 16, 3, 3, layout=FHWC)
    found = [space for space in spaces(operation, Limits()) if space.kind is Formed]
    rng = np.random.default_rng(0)
    drawn_ = {name: set() for name in formed(operation)}
    for space in found:
        for _ in range(200):
            configuration = space.to_configuration(space.draw(rng))
            if rejection_reason(configuration, operation, Limits()) is None:
                drawn_[configuration.form].add(configuration.inner.kind)
                assert configuration_from_dict(configuration.to_dict()) == configuration
    for name in ("permuted", "im2col", "im2col_t", "winograd", "winograd_2"):
        assert drawn_[name] == {"default", "cpu_tiles", "flow"}


def test_a_space_of_a_form_may_be_narrowed():
    operation = Conv2d(1, 16, 16, 8, 16, 3, 3, layout=FHWC)
    space = next(s for s in spaces(operation, Limits()) if s.kind is Formed and s.size > 1000)
    one = space.with_choices("vector_k", 1).with_choices("cached", False)
    assert one.to_configuration(one.draw(np.random.default_rng(0))).inner.cache == ()
