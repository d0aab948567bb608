"""Libraries on layer norms: all modes, types and shapes agree with the references, or are not supported."""

from __future__ import annotations

import numpy as np
import pytest

from dispatch_profiler.operations import (
    Distribution,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.providers.libraries import library_method, open_library
from dispatch_profiler.profiler.providers.library_costs import library_call_ms
from dispatch_profiler.profiler.providers.protocol import NotSupported
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare

SHAPES = [(1, 1), (3, 5), (7, 33), (300, 9), (16, 768)]


def operations(type_: str) -> list[Operation]:
    return [
        each
        for shape in SHAPES
        for each in (
            LayerNorm(*shape, type_),
            LayerNorm(*shape, type_, 1e-3, False),
            LayerNorm(*shape, type_, 1e-3, "weight"),
            LayerNorm(*shape, type_, 1e-3, "bias"),
            LayerNormInputBackward(*shape, type_),
            LayerNormInputBackward(*shape, type_, False),
            LayerNormWeightBackward(*shape, type_),
            LayerNormWeightBackward(*shape, type_, "weight"),
        )
    ]


SMALL = operations("f32")[8:16]


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest):
    """Each library that this Python has."""
    pytest.importorskip(request.param)
    return open_library(request.param, "local-task", 1)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_library_agrees_with_the_reference(name, type_):
    """Every mode, with and without parameters; sums in a narrow type are not supported."""
    pytest.importorskip(name)
    library = open_library(name, "local-task", 1)
    for operation in operations(type_):
        for distribution in operation.distributions:
            inputs = draw(operation, distribution, 5)
            if name == "numpy" and type_ in ("f16", "bf16"):
                with pytest.raises(NotSupported, match=f"numpy computes {type_} one element at a time"):
                    library.put(operation, inputs)
                continue
            if type_ in ("f16", "bf16") and operation.kind == "layer_norm_weight_backward":
                with pytest.raises(NotSupported, match=f"torch sums gradients .* in {type_} on a CPU"):
                    library.bind("", library.put(operation, inputs))
                continue
            found = library.bind("", library.put(operation, inputs)).run()
            comparison = compare(operation, found, operation.reference(inputs, stepwise=True))
            assert comparison.passed, f"{operation.name} on {distribution.value}: {comparison.message}"


@pytest.mark.parametrize("operation", SMALL, ids=lambda operation: operation.name)
def test_inputs_are_left_as_they_were_and_a_second_run_is_the_same(library, operation):
    inputs = draw(operation, Distribution.REALS, 3)
    before = [array.copy() for array in inputs]
    call = library.bind("", library.put(operation, inputs))
    first = call.run()
    assert call.time(3) > 0
    for one, other in zip(call.run(), first, strict=True):
        np.testing.assert_array_equal(one, other)
    for array, was in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, was)


@pytest.mark.parametrize("operation", SMALL, ids=lambda operation: operation.name)
def test_results_that_are_not_written_are_poison(operation, write_nothing):
    library = open_library("numpy", "local-task", 1)
    operands = library.put(operation, draw(operation, Distribution.REALS, 1))
    library.bind("", operands).run()
    write_nothing()
    call = library.bind("", operands)
    assert len(call.run()) == len(operation.results)
    assert all(np.isnan(each).all() for each in call.run())


def test_each_call_takes_the_next_operands():
    """All places hold the results in the end."""
    library, operation = open_library("numpy", "local-task", 1), LayerNormWeightBackward(3, 5)
    inputs = draw(operation, Distribution.INTEGERS, 1)
    places = [library.put(operation, inputs) for _ in range(3)]
    library.bind("", *places).time(2)
    expected = [each.expected for each in operation.reference(inputs)]
    written = [
        all((own == each).all() for own, each in zip(place.handles[-2:], expected, strict=True))
        for place in places
    ]
    assert written == [True, True, False]


def test_the_overhead_of_a_call_is_measured(library):
    assert all(library_call_ms(library, operation) > 0 for operation in (*SMALL, Matmul(2, 2, 2)))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_rows_are_named_after_the_method(name):
    methods = [library_method(name, operation.kind) for operation in SMALL]
    assert methods == ["layer_norm"] * 4 + ["layer_norm_backward"] * 4
