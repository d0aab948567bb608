"""Winograd's forms: the transforms are exact, the error bound holds, and every fault in a transform exceeds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from form_interpreter import sums_of

from dispatch_profiler.configurations import Formed, Limits, Reduction
from dispatch_profiler.configurations.forms import reduction_of
from dispatch_profiler.configurations.forms.builder import Crop, Pad, Transform
from dispatch_profiler.configurations.forms.winograd import FOUR, TWO, Transforms, WinogradBound, winograd
from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Reference,
)
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result

F64 = ElementTypes("f64", "f64", "f64")
FHWC = "nhwc_fhwc_nhwc"
LAYOUTS = ("nhwc", "nchw", FHWC, "nchw_hwcf_nhwc", "hcwn_cwfh_wnch")
#: name -> (transforms, output pixels of a tile along each axis)
FORMS = {"winograd": (FOUR, 4), "winograd_2": (TWO, 2)}
every_form = pytest.mark.parametrize("form", FORMS)
#: Several tiles along each axis, and pixels beyond the image along both.
SMALL = Conv2d(2, 9, 7, 5, 3, 3, 3, padding=(1, 1))


def bounded(operation: Conv2d, form: str, inputs: tuple[np.ndarray, ...]) -> Reference:
    """What a dispatch with this form is compared with."""
    bound = Formed(form).error_bound(operation)
    return operation.reference(inputs, error_bound=bound)[0]


def passes(operation: Conv2d, form: str, inputs: tuple[np.ndarray, ...], reduction: Reduction) -> bool:
    """Whether the steps, computed in the type of the operands, are verified."""
    found = sums_of(reduction, *inputs[:2]).astype(operation.result.type.dtype)
    return compare_result(operation.result, found, bounded(operation, form, inputs)).passed


# -- transforms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transforms", "outputs"), FORMS.values(), ids=FORMS)
def test_the_transforms_are_those_of_a_correlation(transforms: Transforms, outputs: int):
    """sum over x of A[i, x] G[x, k] B[x, p] is 1 where pixel p is output i + tap k, otherwise 0: exactly."""
    assert (transforms.outputs, transforms.tile) == (outputs, outputs + 2)
    for i, k, p in itertools.product(range(outputs), range(3), range(outputs + 2)):
        rows = zip(transforms.output[i], transforms.filter, transforms.input, strict=True)
        assert sum(a * g[k] * b[p] for a, g, b in rows) == (1 if p == i + k else 0)


def test_the_figures_of_the_bound():
    """By hand: sums of a row need one rounding less than terms, and one more if a factor is no power of two."""
    assert (TWO.roundings, FOUR.roundings) == (2 * (1 + 2 + 2), 2 * (4 + 3 + 5))
    assert (TWO.rounded_coefficients, FOUR.rounded_coefficients) == (0, 2)
    assert (TWO.growth, FOUR.growth) == (pytest.approx((8 / 3) ** 2), pytest.approx((76721 / 7500) ** 2))
    # Of ones: tiles up to 2, filters up to 3/2 in halves, outputs of three terms; along both axes.
    assert (TWO.integer_growth, FOUR.integer_growth) == ((2 * 1.5 * 3 * 2) ** 2, float("inf"))


# -- steps ---------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator) -> Conv2d | None:
    """A random convolution that has these forms; None if these parameters make none."""
    sizes = [int(rng.integers(1, high)) for high in (3, 12, 12, 5, 5)]
    before, after = (tuple(int(each) for each in rng.integers(0, 5, 2)) for _ in range(2))
    layout, mode = LAYOUTS[int(rng.integers(5))], ("forward", "input_backward")[int(rng.integers(2))]
    try:
        return Conv2d(*sizes, 3, 3, padding=before, padding_after=after, layout=layout, mode=mode, types=F64)
    except OperationError:
        return None


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(3))
def test_the_steps_compute_the_convolution_within_the_bound(seed: int):
    """100 random convolutions of both modes, with every layout and padding, in float64."""
    rng, tried = np.random.default_rng(seed), 0
    while tried < 100:
        operation = drawn(rng)
        for form in FORMS:
            if operation is not None and Formed(form).invalid_reason(operation, Limits()) is None:
                tried += 1
                inputs = draw(operation, Distribution.REALS, seed)
                assert passes(operation, form, inputs, reduction_of(form, operation)), (form, operation)


@every_form
def test_all_tiles_are_one_batch_of_products(form: str):
    """A filter is copied only if what the product sums over is stored last."""
    tiles = {"winograd": (36, 2 * 3 * 2), "winograd_2": (16, 2 * 5 * 4)}[form]
    for layout, mode, copies in (
        ("nhwc", "forward", 0),
        (FHWC, "forward", 1),
        ("nhwc", "input_backward", 1),
        (FHWC, "input_backward", 0),
    ):
        reduction = reduction_of(form, replace(SMALL, layout=layout, mode=mode))
        filters, channels = (3, 5) if mode == "forward" else (5, 3)
        assert reduction.kernels == (BatchMatmul(*tiles, filters, channels),)
        assert [step.kind for step in reduction.steps].count("gather") == copies


@every_form
def test_every_pass_of_a_transform_is_stored(form: str):
    """The compiler would compute it again for each element that reads it."""
    steps = reduction_of(form, SMALL).steps
    stored = {step.source.name for step in steps if step.kind == "barrier"}
    passes_of_two = [step.result.name for step in steps if step.kind == "transform"]
    assert passes_of_two == ["filter_rows", "filters", "tile_rows", "tiles", "output_rows", "outputs"]
    assert {"filter_rows", "tile_rows", "output_rows", "product"} <= stored


# -- the bound holds -----------------------------------------------------------------------------------


def adversarial(operation: Conv2d, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """Operands in float32 for which transforms are least accurate."""
    shapes = [tensor.shape for tensor in operation.operands]

    def noise(shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-1.0, 1.0, shape)

    # Nearly constant images, and filters whose taps nearly cancel: the sums are far smaller than their terms.
    taps = noise(shapes[1])
    yield 1e4 + noise(shapes[0]), taps - taps.mean(axis=(0, 1)) + 1e-4 * noise(shapes[1])
    # Signs that alternate as in the rows of the transforms.
    signs = (-1.0) ** np.indices(shapes[0]).sum(axis=0)
    yield signs * (2.0 + noise(shapes[0])), (-1.0) ** np.indices(shapes[1]).sum(axis=0) * (2.0 + taps)
    # Neighbours of very different magnitudes.
    yield (
        noise(shapes[0]) * 10.0 ** rng.uniform(-6, 6, shapes[0]),
        taps * 10.0 ** rng.uniform(-6, 6, taps.shape),
    )
    # One large pixel, whose error must not reach other tiles.
    image = noise(shapes[0])
    image[0, 4, 4] = 1e7
    yield image, taps


@every_form
@pytest.mark.parametrize("mode", ["forward", "input_backward"])
@pytest.mark.parametrize("channels", [1, 5, 40])
def test_the_bound_holds_for_operands_with_large_cancellation(form: str, mode: str, channels: int):
    """The steps are computed in float32, and compared with float64."""
    operation = replace(SMALL, c=channels, k=channels + 1, mode=mode)
    reduction = reduction_of(form, operation)
    for inputs in adversarial(operation, np.random.default_rng(channels)):
        narrow = tuple(array.astype(np.float32) for array in inputs)
        assert passes(operation, form, narrow, reduction)


@every_form
def test_the_bound_is_that_of_absolute_values(form: str):
    """It grows with the operands of its own tile only, and with the roundings on the way."""
    bound, operation = WinogradBound(FORMS[form][0]), Conv2d(1, 8, 8, 1, 1, 3, 3, padding=(1, 1))
    one, taps = np.zeros((1, 8, 8, 1)), np.ones((3, 3, 1, 1))
    one[0, 0, 0] = -1.0
    found = bound.of_sums(operation, one, taps)[0, :, :, 0]
    tile = FORMS[form][1]
    assert (found[:tile, :tile] >= 0).all()
    assert found[0, 0] > 0
    assert not found[tile:].any()
    assert not found[:, tile:].any()
    np.testing.assert_allclose(bound.of_sums(operation, 8.0 * one, taps)[0, :, :, 0], 8.0 * found)


def test_the_bound_of_one_tile_by_hand():
    """F(2 x 2): with ones, each element of a tile is at most 2 x 2, 1 to 3/2 along each axis, and 8 along an output."""
    operation = Conv2d(1, 4, 4, 1, 1, 3, 3)
    ones = np.ones((1, 4, 4, 1)), np.ones((3, 3, 1, 1))
    roundings = 10 + 1
    u = 2.0**-24
    expected = 1.01 * (roundings + 1) * u * 8.0**2
    np.testing.assert_allclose(WinogradBound(TWO).of_sums(operation, *ones), expected, rtol=1e-5)


# -- and is not vacuous --------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "most"), [("winograd", 0.03), ("winograd_2", 0.003)])
def test_the_bound_is_a_small_part_of_the_result(form: str, most: float):
    operation = Conv2d(1, 12, 12, 64, 4, 3, 3, padding=(1, 1))
    found = bounded(operation, form, draw(operation, Distribution.REALS, 3))
    assert np.max(found.tolerance) < most * np.max(np.abs(found.expected))


def faulty_matrices(transforms: Transforms) -> Iterator[tuple[str, Transforms]]:
    """Each coefficient wrong: of the other sign, larger by an eighth, or not zero; and every two rows exchanged."""
    for name in ("input", "filter", "output"):
        matrix = getattr(transforms, name)
        for row, column in itertools.product(range(len(matrix)), range(len(matrix[0]))):
            right = matrix[row][column]
            for wrong in (-right, right * Fraction(9, 8)) if right else (Fraction(1),):
                rows = [list(each) for each in matrix]
                rows[row][column] = wrong
                yield f"{name}[{row}][{column}]", replace(transforms, **{name: tuple(map(tuple, rows))})
        for one, other in itertools.combinations(range(len(matrix)), 2):
            order = list(matrix)
            order[one], order[other] = order[other], order[one]
            yield f"{name} rows {one} and {other}", replace(transforms, **{name: tuple(order)})


@pytest.mark.some(2)
@every_form
@pytest.mark.parametrize(
    ("mode", "channels"),
    [("forward", 5), ("input_backward", 5), pytest.param("forward", 256, marks=pytest.mark.slow)],
)
def test_every_wrong_coefficient_of_a_transform_is_found(form: str, mode: str, channels: int):
    operation = replace(SMALL, mode=mode, c=channels)
    inputs = draw(operation, Distribution.REALS, 3)
    right = FORMS[form][0]
    assert passes(operation, form, inputs, winograd(right)(operation, operation.convolution))
    for what, wrong in faulty_matrices(right):
        reduction = winograd(wrong)(operation, operation.convolution)
        assert not passes(operation, form, inputs, reduction), what


def without_last_tile(reduction: Reduction, axis: str) -> Reduction:
    """The transformed tiles with zeros in place of the last one along `axis`."""
    steps = []
    for step in reduction.steps:
        if isinstance(step, Transform) and step.result.name == "tiles":
            whole = replace(step.result, name="whole")
            at = step.loops.index(axis)
            shape = tuple(size - (each == at) for each, size in enumerate(whole.shape))
            fewer = replace(whole, name="fewer", shape=shape)
            last = tuple(int(each == at) for each in range(len(shape)))
            none = (0,) * len(shape)
            steps += [
                replace(step, result=whole), Crop(fewer, whole, none), Pad(step.result, fewer, none, last)
            ]  # fmt: skip
        else:
            steps.append(step)
    assert len(steps) == len(reduction.steps) + 2
    return replace(reduction, steps=tuple(steps))


@every_form
@pytest.mark.parametrize("axis", ["th", "tw"])
def test_a_missing_tile_at_the_border_is_found(form: str, axis: str):
    inputs = draw(SMALL, Distribution.REALS, 3)
    assert not passes(SMALL, form, inputs, without_last_tile(reduction_of(form, SMALL), axis))


def test_integers_must_be_exact_where_the_transforms_are():
    """F(2 x 2) has halves only; F(4 x 4) divides by 6 and 24."""
    inputs = draw(SMALL, Distribution.INTEGERS, 3)
    exact = bounded(SMALL, "winograd_2", inputs)
    assert exact.tolerance is None
    np.testing.assert_array_equal(exact.expected, SMALL.reference(inputs)[0].expected)
    assert bounded(SMALL, "winograd", inputs).tolerance is not None
    assert passes(SMALL, "winograd_2", inputs, reduction_of("winograd_2", SMALL))
    assert passes(SMALL, "winograd", inputs, reduction_of("winograd", SMALL))


def test_larger_integers_are_compared_with_a_bound():
    """Beyond 2**24, 4 * 81 * c * |d| * |g| may be rounded."""
    inputs = tuple(16.0 * each for each in draw(SMALL, Distribution.INTEGERS, 3))
    narrow = tuple(each.astype(np.float32) for each in inputs)
    assert SMALL.reference(narrow)[0].tolerance is None
    assert bounded(SMALL, "winograd_2", narrow).tolerance is not None


@every_form
def test_the_epilogue_follows_with_its_own_error(form: str):
    operation = replace(SMALL, epilogue=Epilogue.parse("bias+gelu"))
    inputs = draw(operation, Distribution.REALS, 3)
    sums = bounded(SMALL, form, inputs[:2])
    assert np.median(bounded(operation, form, inputs).tolerance / sums.tolerance) > 0.2


# -- which operations have it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Matmul(8, 8, 8), "the form winograd is for convolutions, not matmul"),
        (Conv1d(1, 8, 4, 4, 3), "the form winograd is for conv2d, not conv1d"),
        (Conv3d(1, 3, 8, 8, 4, 4, 3, 3, 3), "the form winograd is for conv2d, not conv3d"),
        (
            replace(SMALL, mode="weight_backward"),
            "the form winograd is not for weight_backward: use im2col or im2col_t",
        ),
        (Conv2d(1, 8, 8, 4, 4, 3, 5), "the form winograd is for filters of 3x3, not 3x5"),
        (replace(SMALL, stride=(1, 2)), "the form winograd is for stride 1x1, not 1x2"),
        (replace(SMALL, dilation=(2, 2)), "the form winograd is for dilation 1x1, not 2x2"),
        (Conv2d(1, 8, 8, 4, 4, 3, 3, groups=2), "the form winograd is for one group, not 2"),
        (
            replace(SMALL, types=ElementTypes("i8", "i8", "i32")),
            "the form winograd is for f32 and f64, not i8: its transforms have fractions",
        ),
        (
            replace(SMALL, types=ElementTypes("bf16", "bf16", "f32")),
            "the form winograd is for f32 and f64, not bf16: its kernel would read transformed operands that are "
            "rounded to that type",
        ),
    ],
)
def test_why_an_operation_does_not_have_the_form(operation, reason: str):
    assert Formed("winograd").invalid_reason(operation, Limits()) == reason
    assert Formed("winograd_2").invalid_reason(operation, Limits()) == reason.replace(
        "winograd", "winograd_2"
    )


# -- volumes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transforms", [TWO, FOUR])
def test_the_bound_of_a_volume_is_that_of_its_planes(transforms: Transforms):
    """With three planes, padded by one, each plane of the result adds up the images that its taps read."""
    rng = np.random.default_rng(0)
    image = Conv2d(2, 6, 7, 4, 3, 3, 3, padding=(1, 1), layout="nhwc_hwcf_nhwc")
    volume = Conv3d(2, 3, 6, 7, 4, 3, 3, 3, 3, padding=(1, 1, 1), layout="ndhwc_dhwcf_ndhwc")
    planes, taps = rng.standard_normal((2, 3, 6, 7, 4)), rng.standard_normal((3, 3, 3, 4, 3))
    bound = WinogradBound(transforms)
    found = bound.of_sums(volume, planes, taps)
    single = {(p, t): bound.of_sums(image, planes[:, p], taps[t]) for p in range(3) for t in range(3)}
    summed = np.stack(
        [sum(single[p + t - 1, t] for t in range(3) if 0 <= p + t - 1 < 3) for p in range(3)], axis=1
    )
    # The factor grows with the number of terms: three times as many, but no more than proportionally.
    assert found.shape == summed.shape
    ratio = found / summed
    assert np.ptp(ratio) < 1e-6 * ratio.max() and 1 < ratio.max() < 3
