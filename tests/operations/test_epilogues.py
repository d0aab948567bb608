"""Epilogues, and references for a library that stores its result between the steps of one."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from epilogue_helpers import OF_ROWS, SEQUENCES, SIMPLE, STEP_TEXTS, random_epilogue
from hypothesis import given
from hypothesis import strategies as st
from naive_operations import PROPERTY, after_epilogue, exact_sum, operand_count, products, stepped, steps_in
from pairwise import parametrize_pairwise

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    STEP_KINDS,
    BatchMatmul,
    Conv2d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Step,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.operations.epilogue_steps import Roundoffs

EVERY = [*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES, *OF_ROWS))]
ELEMENTWISE = [text for text in STEP_TEXTS if not Step.parse(text).has_operands]
#: Of a kernel that computes without rounding.
ROUNDOFFS = Roundoffs(0.0, 0.0, False)


def steps(*names: str) -> Epilogue:
    return Epilogue(tuple(Step(name) for name in names))


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epilogue", EVERY, ids=str)
def test_an_epilogue_is_read_back_as_it_is_written(epilogue):
    assert Epilogue.parse(str(epilogue)) == epilogue


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Epilogue()),
        ("bias", steps("bias")),
        ("relu", steps("relu")),
        ("bias+none", steps("bias")),
        (" Bias + ReLU ", steps("bias", "relu")),
        ("scale_shift+residual+relu", steps("scale_shift", "residual", "relu")),
        ("clamp(-1,1)", Epilogue((Step("clamp", (-1.0, 1.0)),))),
        ("clamp( -1.0, +1e0 )", Epilogue((Step("clamp", (-1.0, 1.0)),))),
        ("leaky_relu", Epilogue((Step("leaky_relu", (0.01,)),))),
        ("leaky_relu(.01)", Epilogue((Step("leaky_relu"),))),
        ("clamp(-0,1)", Epilogue((Step("clamp", (0.0, 1.0)),))),
        ("residual(1)", steps("residual")),
        ("scale(0.5)", Epilogue((Step("scale", (0.5,)),))),
    ],
)
def test_spellings_of_an_epilogue(text, expected):
    """Case and blanks do not matter; `none` adds nothing."""
    assert Epilogue.parse(text) == expected
    assert str(Epilogue.parse(text)) == str(expected)


def test_commas_in_parentheses_separate_no_epilogues():
    found = Epilogue.parse_list("none, clamp(-1,1),bias+clamp(0,6)+relu,none")
    assert [str(each) for each in found] == ["none", "clamp(-1,1)", "bias+clamp(0,6)+relu"]


@pytest.mark.parametrize("text", ["", "+", "bias+", "+relu", "bias++relu", "relu+ +bias"])
def test_an_empty_part_is_rejected(text):
    with pytest.raises(OperationError, match=re.escape(f"malformed epilogue {text!r}")) as caught:
        Epilogue.parse(text)
    assert caught.value.hint.startswith("write none, or steps joined by +, such as bias+relu")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("gellu", "unknown step 'gellu' of an epilogue", "did you mean 'gelu'? Available: none, bias, "),
        ("bias+gellu", "unknown step 'gellu' of an epilogue", "did you mean 'gelu'?"),
        ("biass", "unknown step 'biass' of an epilogue", "did you mean 'bias'?"),
        ("clip(0,1)", "unknown step 'clip' of an epilogue", ""),
        ("clamp", "clamp takes 2 numbers (lo, hi), but got clamp", "write clamp(-1,1)"),
        ("clamp(1)", "clamp takes 2 numbers (lo, hi), but got clamp(1)", "write clamp(-1,1)"),
        ("clamp(1,2,3)", "clamp takes 2 numbers (lo, hi), but got clamp(1,2,3)", "write clamp(-1,1)"),
        ("clamp(a,1)", "clamp takes numbers, but got 'a'", "write clamp(-1,1)"),
        ("clamp(,)", "clamp takes numbers, but got ''", "write clamp(-1,1)"),
        ("clamp(nan,1)", "clamp takes numbers, but got 'nan'", "write clamp(-1,1)"),
        ("clamp(0,1e999)", "clamp takes finite numbers, but got clamp(0,inf)", "write clamp(-1,1)"),
        ("clamp(1,-1)", "clamp needs lo <= hi, but got clamp(1,-1)", "write clamp(-1,1)"),
        ("leaky_relu()", "leaky_relu takes numbers, but got ''", "write leaky_relu or leaky_relu(0.2)"),
        ("leaky_relu(1,2)", "leaky_relu takes 1 number (slope), but got leaky_relu(1,2)", "write leaky_relu"),
        ("leaky_relu(0)", "leaky_relu needs a slope above 0, but got leaky_relu(0)", "relu for a slope of 0"),
        ("scale", "scale takes 1 number (factor), but got scale", "write scale(0.5)"),
        ("scale(0)", "scale needs a factor other than 0, but got scale(0)", "write scale(0.5)"),
        ("residual(0)", "residual needs a factor other than 0, but got residual(0)", "residual(0.5)"),
        ("relu(6)", "relu takes no numbers, but got relu(6)", "write relu"),
        ("relu()", "relu takes no numbers, but got relu()", "write relu"),
        ("clamp(-1,1", "malformed step 'clamp(-1,1' of an epilogue", "such as bias+relu"),
        ("clamp-1,1)", "malformed step 'clamp-1,1)' of an epilogue", "such as bias+relu"),
        ("clamp((0,1))", "malformed step 'clamp((0,1))' of an epilogue", "such as bias+relu"),
        ("relu;bias", "malformed step 'relu;bias' of an epilogue", "such as bias+relu"),
        ("+".join(["relu"] * 17), "an epilogue has at most 16 steps, but got 17", "leave out"),
    ],
)
def test_a_malformed_step_is_rejected_in_one_sentence_with_a_hint(text, message, hint):
    with pytest.raises(OperationError) as caught:
        Epilogue.parse(text)
    assert str(caught.value) == message
    assert hint in caught.value.hint


def test_a_message_repeats_only_the_start_of_a_long_text():
    with pytest.raises(OperationError) as caught:
        Epilogue.parse("x" * 100_000)
    assert len(str(caught.value)) < 200


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("bias", "bias"),
        ("bias+relu", "bias_relu"),
        ("clamp(-1,1)", "clampm1to1"),
        ("clamp(-0.5,1e-7)", "clampm0p5to1em07"),
        ("clamp(0,1e22)", "clamp0to1e22"),
        ("leaky_relu", "leaky_relu"),
        ("leaky_relu(0.01)", "leaky_relu"),
        ("leaky_relu(0.2)", "leaky_relu0p2"),
        ("scale(0.5)+residual(-2)", "scale0p5_residualm2"),
        ("gelu_tanh", "gelutanh"),
        ("gelu+tanh", "gelu_tanh"),
        ("scale_shift+residual+relu6", "scale_shift_residual_relu6"),
        ("channel_scale+bias", "channel_scale_bias"),
    ],
)
def test_a_name_is_a_symbol(text, suffix):
    operation = Matmul(8, 8, 8, epilogue=Epilogue.parse(text))
    assert operation.name == f"matmul_8x8x8_f32t_f32t_f32t_{suffix}"
    assert re.fullmatch(r"[A-Za-z_]\w*", operation.name, re.ASCII)
    assert operation.arguments()["epilogue"] == str(operation.epilogue)


def test_different_epilogues_have_different_names():
    rng = np.random.default_rng(1)
    every = {*EVERY, *(random_epilogue(rng) for _ in range(2000))}
    assert len({each.suffix for each in every}) == len(every)
    assert len({str(each) for each in every}) == len(every)


def test_operands_that_repeat_are_numbered():
    """Every operand has the type of the result, and the shape of its channels, its rows or itself."""
    epilogue = Epilogue.parse("bias+residual+scale_shift+residual+bias+scale_shift+row_scale")
    operation = BatchMatmul(2, 3, 4, 5, ElementTypes("f16", "f16", "f32"), epilogue=epilogue)
    found = [(tensor.name, tensor.shape, tensor.type.name) for tensor in operation.operands[2:]]
    assert found == [
        ("bias", (4,), "f32"),
        ("residual", (2, 3, 4), "f32"),
        ("scale", (4,), "f32"),
        ("shift", (4,), "f32"),
        ("residual2", (2, 3, 4), "f32"),
        ("bias2", (4,), "f32"),
        ("scale2", (4,), "f32"),
        ("shift2", (4,), "f32"),
        ("scale3", (2, 3, 1), "f32"),
    ]


def test_only_the_epilogue_that_does_nothing_is_empty():
    assert [Epilogue.parse(text).is_empty for text in ("none", "bias", "tanh")] == [True, False, False]


def test_there_are_thirty_sequences_and_one_of_every_step():
    """Other tests go through these."""
    assert len(set(SEQUENCES)) >= 30
    assert {Step.parse(text).name for text in (*STEP_TEXTS, OF_ROWS[0])} == set(STEP_KINDS)


# -- operations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("none", 0),
        ("bias", 1),
        ("residual", 1),
        ("channel_scale", 1),
        ("row_scale", 1),
        ("scale_shift", 2),
        ("scale(0.5)", 1),
        ("relu", 1),
        ("relu6", 2),
        ("clamp(-1,1)", 2),
        ("leaky_relu", 2),
        ("hardswish", 5),
        ("hardsigmoid", 4),
        ("gelu", 5),
        ("gelu_tanh", 9),
        ("silu", 4),
        ("sigmoid", 4),
        ("tanh", 5),
        ("scale_shift+residual+relu", 4),
    ],
)
def test_operations_counted_for_a_step(text, flops):
    """As written: gelu is mul, erf, add, mul, mul; its tanh form has five more for its argument; silu is sigmoid
    with another numerator; hardsigmoid is add, max, min, mul, and hardswish one more mul; a comparison counts as one."""
    assert Epilogue.parse(text).flops == flops


@pytest.mark.parametrize(
    "text",
    [
        "gelu",
        "silu",
        "hardswish",
        "hardsigmoid",
        "leaky_relu",
        "clamp(-0.5,1)",
        "clamp(0,1e10)",
        "bias+tanh",
        "scale(0.5)",
        "residual(0.5)",
    ],
)
def test_a_step_that_makes_no_integers_is_rejected_for_integer_results(text):
    with pytest.raises(OperationError, match="needs a floating-point result, but got i32"):
        Matmul(2, 2, 2, ElementTypes("i8", "i8", "i32"), epilogue=Epilogue.parse(text))


def test_a_number_that_the_sums_cannot_hold_is_rejected():
    """16-bit inputs may be summed in their own type."""
    Matmul(2, 2, 2, epilogue=Epilogue.parse("clamp(-100000,100000)"))
    message = r"^clamp\(-100000,100000\) has a number beyond 65504, the largest value of f16$"
    with pytest.raises(OperationError, match=message):
        Matmul(2, 2, 2, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("clamp(-1e5,1e5)"))


# -- functions -------------------------------------------------------------------------------------


@PROPERTY
@given(st.sampled_from(ELEMENTWISE), st.lists(st.floats(-30, 30), min_size=1, max_size=20))
def test_a_step_is_its_definition(text, values):
    """Against `math`, to some roundoffs of the larger of argument and value."""
    actual = Step.parse(text).apply(np.array(values), ())
    expected = np.array([stepped(text, x) for x in values])
    scale = np.maximum(np.abs(expected), np.minimum(np.abs(values), 1.0))
    assert np.all(np.abs(actual - expected) <= 16 * 2.0**-53 * scale)


SLOPES = {"relu": 1, "relu6": 1, "clamp(-1,1)": 1, "clamp(-0.3,0.7)": 1, "leaky_relu": 1, "leaky_relu(0.2)": 1,
          "leaky_relu(3)": 3, "scale(0.5)": 0.5, "hardswish": 1.5, "hardsigmoid": 1 / 6, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "sigmoid": 0.25, "tanh": 1}  # fmt: skip


@pytest.mark.parametrize(("text", "slope"), SLOPES.items())
def test_the_error_of_an_argument_grows_by_the_slope(text, slope):
    """Difference quotients of the definition reach the slope to one in a hundred, and no further."""
    x = np.linspace(-6, 6, 24001)
    y = np.array([stepped(text, each) for each in x])
    steepest = float(np.max(np.abs(np.diff(y) / np.diff(x))))
    assert 0.99 * slope < steepest <= slope * (1 + 1e-9)
    step, large = Step.parse(text), np.array(1e6)
    assert float(step.error(np.array(0.5), np.array(0.5), large, ROUNDOFFS, ())) == pytest.approx(
        1e6 * slope, rel=1e-5
    )


@pytest.mark.parametrize("text", [*ELEMENTWISE, "leaky_relu(3)"])
def test_a_step_without_operands_has_a_known_slope(text):
    assert text in SLOPES


@pytest.mark.parametrize("text", ELEMENTWISE)
def test_a_step_is_exact_if_it_makes_whole_numbers_of_whole_numbers(text):
    """Only what selects does; what multiplies by a fraction, or goes through exp or erf, does not."""
    is_whole = all(stepped(text, x).is_integer() for x in (-2.0, -1.0, 1.0, 2.0))
    assert (is_whole, is_whole) == (Step.parse(text).is_exact, Step.parse(text).is_on_integers)


@pytest.mark.parametrize("text", ELEMENTWISE)
def test_a_step_passes_nan_on(text):
    """A clamp must not hide what is not a number."""
    assert math.isnan(Step.parse(text).apply(np.array([np.nan]), ())[0])


# -- references ------------------------------------------------------------------------------------

OPERATIONS = {
    "matmul": Matmul(3, 4, 5),
    "batch_matmul": BatchMatmul(2, 3, 4, 5, lhs_layout="n"),
    "nhwc": Conv2d(2, 4, 4, 2, 3, 2, 2),
    "nchw": Conv2d(2, 4, 4, 2, 4, 2, 2, groups=2, layout="nchw"),
}


def has_rows(operation: str, epilogue: Epilogue) -> bool:
    """Whether an operation has the rows that the steps need."""
    return "matmul" in operation or "row_scale" not in str(epilogue)


@parametrize_pairwise(
    ("epilogue", "kind", "distribution"),
    [each for each in itertools.product(EVERY, OPERATIONS, Distribution) if has_rows(each[1], each[0])],
    ids=str,
)
def test_a_reference_is_the_definition_of_each_element(epilogue, kind, distribution):
    """Channels are columns of products and the filters of convolutions, in either layout."""
    operation = replace(OPERATIONS[kind], epilogue=epilogue)
    rng = np.random.default_rng(3)
    inputs = [operation.draw(tensor, distribution, rng) for tensor in operation.operands]
    found = reference(operation, inputs)
    for index, pairs in products(operation, *inputs[:2]).items():
        truth = after_epilogue(operation, inputs, index, float(exact_sum(pairs)))
        tolerance = 0.0 if found.tolerance is None else found.tolerance[index]
        assert abs(truth - float(found.expected[index])) <= tolerance


@pytest.mark.parametrize("epilogue", EVERY, ids=str)
def test_integers_stay_exact_through_the_steps_that_keep_them_whole(epilogue):
    """And are drawn such that every step fits, whatever the type and the number of products."""
    exact = {
        "bias",
        "residual",
        "channel_scale",
        "row_scale",
        "scale_shift",
        "relu",
        "relu6",
        "clamp(-1,1)",
        "clamp(-2,2)",
    }
    for types in (("f32", "f32", "f32"), ("f16", "f16", "f16"), ("f64", "f64", "f64")):
        operation = Matmul(3, 8, 300, ElementTypes(*types), epilogue=epilogue)
        rng = np.random.default_rng(5)
        inputs = [operation.draw(each, Distribution.INTEGERS, rng) for each in operation.operands]
        assert (reference(operation, inputs).tolerance is None) == (set(steps_in(epilogue)) <= exact)


@pytest.mark.parametrize(
    "text",
    [
        "scale_shift+relu",
        "channel_scale+row_scale+bias",
        "residual+scale_shift+clamp(-90,90)+residual",
        "relu6+bias",
    ],
)
def test_integer_results_wrap_around_after_each_step(text):
    """As a 32-bit register does: a product may pass the ends, and what follows sees what is left."""
    operation = Matmul(4, 6, 8, ElementTypes("i8", "i8", "i32"), epilogue=Epilogue.parse(text))
    rng = np.random.default_rng(7)
    inputs = [rng.integers(-128, 128, each.shape).astype(np.int8) for each in operation.operands[:2]]
    inputs += [rng.integers(-(2**31), 2**31, each.shape).astype(np.int32) for each in operation.operands[2:]]
    expected = inputs[0].astype(np.int32) @ inputs[1].astype(np.int32)
    rest = inputs[2:]
    for step in steps_in(operation.epilogue):
        if step in ("bias", "residual"):
            expected = expected + rest.pop(0)
        elif step in ("channel_scale", "row_scale"):
            expected = expected * rest.pop(0)
        elif step == "scale_shift":
            expected = expected * rest.pop(0) + rest.pop(0)
        else:
            expected = np.vectorize(lambda x, step=step: int(stepped(step, float(x))))(expected).astype(
                np.int32
            )
    np.testing.assert_array_equal(reference(operation, inputs).expected, expected)


def test_convolutions_have_no_scales_of_rows():
    """Their rows are pixels, in several axes."""
    with pytest.raises(OperationError, match="a scale for each row of a product") as caught:
        replace(OPERATIONS["nhwc"], epilogue=Epilogue.parse("bias+row_scale"))
    assert "use channel_scale" in caught.value.hint


def test_factors_are_never_zero():
    """A scale of 0 would hide the sum."""
    operation = Matmul(2, 5000, 2, epilogue=Epilogue.parse("scale_shift+scale_shift"))
    rng = np.random.default_rng(0)
    drawn = {each.name: operation.draw(each, Distribution.INTEGERS, rng) for each in operation.operands}
    assert set(np.unique(drawn["scale"])) == set(np.unique(drawn["scale2"])) == {-2, -1, 1, 2}
    assert 0 in drawn["shift"]


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "planted"),
    [
        ("leaky_relu(0.2)", "leaky_relu"),
        ("leaky_relu", "leaky_relu(0.011)"),
        ("bias+residual+relu", "bias+relu"),
        ("scale_shift+residual", "scale_shift"),
        ("scale(0.5)+residual", "residual"),
        ("residual(0.5)", "residual"),
        ("scale(2)+residual(3)", "scale(3)+residual(2)"),
        ("gelu_tanh", "gelu"),
        ("gelu", "gelu_tanh"),
        ("silu", "sigmoid"),
        ("hardswish", "silu"),
        ("hardswish", "hardsigmoid"),
        ("hardsigmoid", "sigmoid"),
        ("relu6", "relu"),
        ("clamp(-1,1)", "clamp(-1,1.01)"),
        ("residual+tanh", "tanh+residual"),
        ("bias+scale_shift", "scale_shift+bias"),
    ],
)
@pytest.mark.parametrize("result", ["f32", "f16"])
def test_another_epilogue_is_outside_the_bound(text, planted, result):
    """On the inputs that are drawn: of integers or of reals, some element is wrong."""
    types = ElementTypes("f16", "f16", result)
    operation, wrong = (Matmul(32, 32, 32, types, epilogue=Epilogue.parse(each)) for each in (text, planted))
    assert is_outside(operation, wrong, lambda inputs: inputs)


def test_a_scale_and_a_shift_that_are_swapped_are_outside_the_bound():
    operation = Matmul(32, 32, 32, epilogue=Epilogue.parse("scale_shift+relu"))
    assert is_outside(operation, operation, lambda inputs: [*inputs[:2], inputs[3], inputs[2]])
    assert not is_outside(operation, operation, lambda inputs: inputs)


def is_outside(operation, wrong, change) -> bool:
    outside = False
    for distribution in Distribution:
        rng = np.random.default_rng(11)
        inputs = {each.name: operation.draw(each, distribution, rng) for each in operation.operands}
        theirs = [inputs[each.name] for each in wrong.operands]
        found, actual = reference(operation, list(inputs.values())), reference(wrong, change(theirs)).expected
        tolerance = 0.0 if found.tolerance is None else found.tolerance
        stored = actual.astype(operation.types.output.dtype).astype(float)
        outside |= bool((np.abs(stored - found.expected.astype(float)) > tolerance).any())
    return outside


NARROW = ("f16", "bf16", "f8E4M3FN")
EPILOGUES = [*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES))]


def operands(operation: Matmul, seed: int, whole: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    largest = 1.5 if operation.types.result == "f8E4M3FN" else 4  # no value between the steps may overflow
    arrays = [rng.uniform(-largest, largest, tensor.shape) for tensor in operation.operands]
    return [
        (np.rint(array) if whole else array).astype(t.type.dtype)
        for array, t in zip(arrays, operation.operands, strict=True)
    ]


def stepwise(operation: Matmul, inputs: list[np.ndarray]) -> np.ndarray:
    """The product and each step: in float64, and rounded to the result's type."""
    dtype = operation.types.output.dtype
    value = (inputs[0].astype(float) @ inputs[1].astype(float)).astype(dtype)
    rest = inputs[2:]
    for step in steps_in(operation.epilogue):
        count = operand_count(step)
        broadcast = [np.broadcast_to(each.astype(float), value.shape) for each in rest[:count]]
        rest = rest[count:]
        each = np.vectorize(lambda x, *theirs, step=step: stepped(step, x, theirs), otypes=[float])
        value = each(value.astype(float), *broadcast).astype(dtype)
    return value


@parametrize_pairwise(
    ("result", "epilogue", "whole"), list(itertools.product(NARROW, EPILOGUES, [True, False])), ids=str
)
def test_rounding_after_each_step_is_within_the_bound(result, epilogue, whole):
    """What is off by the roundings alone is right."""
    operation = Matmul(8, 12, 40, ElementTypes("f16", "f16", result), epilogue=epilogue)
    for seed in range(2):
        inputs = operands(operation, seed, whole)
        found = reference(operation, inputs, stepwise=True)
        actual = stepwise(operation, inputs).astype(float)
        tolerance = 0.0 if found.tolerance is None else found.tolerance
        with np.errstate(invalid="ignore"):
            near = np.abs(actual - found.expected.astype(float)) <= tolerance
        # Beyond the largest value of an f8 there is NaN, and so it is in the reference.
        assert (near | (np.isnan(actual) & np.isnan(found.expected.astype(float)))).all()


def test_a_fused_kernel_is_held_to_one_rounding():
    """The bound that allows for steps is not the one of a dispatch: some of these are outside it."""
    operation = Matmul(16, 24, 40, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("bias"))
    inputs = operands(operation, 1, True)
    assert reference(operation, inputs).tolerance is None
    reals = operands(operation, 1, False)
    fused, allowed = reference(operation, reals), reference(operation, reals, stepwise=True)
    assert fused.tolerance is not None and allowed.tolerance is not None
    assert (allowed.tolerance > fused.tolerance).all()


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_without_a_narrower_result_nothing_is_allowed_for(epilogue):
    """Sums in f32 are stored as f32: there is no rounding between the steps."""
    operation = Matmul(8, 8, 8, epilogue=epilogue)
    inputs = operands(operation, 2, False)
    one, other = reference(operation, inputs), reference(operation, inputs, stepwise=True)
    np.testing.assert_array_equal(one.tolerance, other.tolerance)


@pytest.mark.parametrize("epilogue", [Epilogue(), Epilogue.parse("relu")], ids=str)
def test_what_no_rounding_changes_stays_exact(epilogue):
    """relu of a rounded sum is the rounded relu."""
    operation = Matmul(8, 8, 8, ElementTypes("f16", "f16", "f16"), epilogue=epilogue)
    assert reference(operation, operands(operation, 3, True), stepwise=True).tolerance is None


def test_a_wrong_element_is_still_outside():
    """The bound is a few roundings of the values that are stored, no more."""
    operation = Matmul(8, 8, 8, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("bias+gelu"))
    found = reference(operation, operands(operation, 4, True), stepwise=True)
    assert found.tolerance is not None
    assert (found.tolerance < 0.02 * np.maximum(np.abs(found.expected), 16.0)).all()
