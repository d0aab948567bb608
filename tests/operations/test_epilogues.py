"""Epilogues are read as they are written, and activations do what they are called after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_operations import ACTIVATION_NAMES, PROPERTY, activated

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import ACTIVATIONS, Epilogue


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("bias", [False, True])
def test_an_epilogue_is_read_back_as_it_is_written(bias, activation):
    """str() and parse() are inverse to each other."""
    epilogue = Epilogue(bias, activation)
    assert epilogue == Epilogue.parse(str(epilogue))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Epilogue()),
        ("bias", Epilogue(bias=True)),
        ("relu", Epilogue(activation="relu")),
        ("bias+none", Epilogue(bias=True)),
        (" Bias+ReLU ", Epilogue(bias=True, activation="relu")),
    ],
)
def test_spellings_of_an_epilogue(text, expected):
    """Case and blanks around do not matter; `none` adds nothing."""
    assert expected == Epilogue.parse(text)


@pytest.mark.parametrize("text", ["", "+", "bias+", "+relu", "relu+bias", "relu+tanh", "bias+relu+tanh"])
def test_a_malformed_epilogue_is_refused(text):
    """Bias comes first, then at most one activation, and no part is empty."""
    with pytest.raises(OperationError) as caught:
        Epilogue.parse(text)
    assert f"malformed epilogue {text!r}" == str(caught.value)
    assert caught.value.hint == "write none, bias, relu or bias+relu"


@pytest.mark.parametrize("text", ["gellu", "bias+gellu"])
def test_an_unknown_activation_is_refused_with_the_nearest(text):
    """The hint names what was probably meant, and all that there are."""
    with pytest.raises(OperationError, match="unknown activation 'gellu'") as caught:
        Epilogue.parse(text)
    assert caught.value.hint.startswith("did you mean 'gelu'? Available: none, relu, gelu, sigmoid, tanh")


def test_a_mistyped_bias_is_refused_with_bias():
    """`biass` was meant to be `bias`, which is no activation but belongs in the hint."""
    with pytest.raises(OperationError, match="biass") as caught:
        Epilogue.parse("biass")
    assert "'bias'" in caught.value.hint or " bias" in caught.value.hint


def test_only_the_epilogue_that_does_nothing_is_empty():
    """A bias or an activation makes it something."""
    assert [Epilogue.parse(t).is_empty for t in ("none", "bias", "tanh")] == [True, False, False]


def test_the_table_holds_five_activations():
    """Their order is that of the hints."""
    assert tuple(ACTIVATIONS) == ACTIVATION_NAMES


@pytest.mark.parametrize(
    ("name", "flops"), [("none", 0), ("relu", 1), ("gelu", 5), ("sigmoid", 4), ("tanh", 5)]
)
def test_operations_counted_for_an_activation(name, flops):
    """gelu is mul, erf, add, mul, mul; sigmoid is neg, exp, add, div; tanh counts as its exp form."""
    assert flops == ACTIVATIONS[name].flops


@PROPERTY
@given(st.sampled_from(ACTIVATION_NAMES), st.lists(st.floats(-30, 30), min_size=1, max_size=20))
def test_an_activation_is_its_definition(name, values):
    """Against `math`, to some roundoffs of the larger of argument and value."""
    actual = ACTIVATIONS[name].function(np.array(values))
    expected = np.array([activated(name, x) for x in values])
    scale = np.maximum(np.abs(expected), np.minimum(np.abs(values), 1.0))
    assert np.all(np.abs(actual - expected) <= 16 * 2.0**-53 * scale)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_an_activation_is_nowhere_steeper_than_its_slope(name):
    """Difference quotients of the definition reach the slope to one in a hundred, and no further."""
    x = np.linspace(-6, 6, 24001)
    y = np.array([activated(name, each) for each in x])
    steepest = float(np.max(np.abs(np.diff(y) / np.diff(x))))
    slope = ACTIVATIONS[name].slope
    assert 0.99 * slope < steepest <= slope * (1 + 1e-9)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_an_activation_is_exact_if_it_makes_whole_numbers_of_whole_numbers(name):
    """relu is exact on integers; what goes through exp or erf is not."""
    is_whole = all(activated(name, x).is_integer() for x in (-2.0, -1.0, 1.0, 2.0))
    assert (is_whole, is_whole) == (ACTIVATIONS[name].is_exact, ACTIVATIONS[name].on_integers)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_an_activation_passes_nan_on(name):
    """What is no number stays none: relu must not hide it."""
    assert math.isnan(ACTIVATIONS[name].function(np.array([np.nan]))[0])
