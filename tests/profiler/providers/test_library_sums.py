"""Libraries on gradients of biases: all types and shapes agree with the references, or are not supported."""

from __future__ import annotations

import numpy as np
import pytest

from dispatch_profiler.operations import BiasBackward, Distribution
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.providers.libraries import library_method, open_library
from dispatch_profiler.profiler.providers.library_costs import library_call_ms
from dispatch_profiler.profiler.providers.protocol import NotSupported
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare

SHAPES = [(1, 1, 1), (3, 5, 1), (1, 7, 33), (9, 4, 100), (5000, 3, 1), (2, 3, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_library_agrees_with_the_reference(name, type_, shape):
    """numpy would sum in a narrow type, which is not supported."""
    pytest.importorskip(name)
    library, operation = open_library(name, "local-task", 1), BiasBackward(*shape, type_)
    for distribution in operation.distributions:
        inputs = draw(operation, distribution, 5)
        if name == "numpy" and type_ in ("f16", "bf16"):
            with pytest.raises(NotSupported, match=f"numpy computes {type_} one element at a time"):
                library.put(operation, inputs)
            continue
        found = library.bind("", library.put(operation, inputs)).run()
        comparison = compare(operation, found, operation.reference(inputs, stepwise=True))
        assert comparison.passed, f"{operation.name} on {distribution.value}: {comparison.message}"


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_inputs_are_left_as_they_were_and_results_that_are_not_written_are_poison(name, write_nothing):
    pytest.importorskip(name)
    library, operation = open_library(name, "local-task", 1), BiasBackward(9, 4, 5)
    inputs = draw(operation, Distribution.REALS, 3)
    before = [array.copy() for array in inputs]
    operands = library.put(operation, inputs)
    call = library.bind("", operands)
    first = call.run()[0]
    assert call.time(3) > 0
    np.testing.assert_array_equal(call.run()[0], first)
    np.testing.assert_array_equal(inputs[0], before[0])
    write_nothing()
    assert np.isnan(library.bind("", operands).run()[0]).all()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_its_row_is_named_after_the_method_and_its_overhead_is_measured(name):
    pytest.importorskip(name)
    assert library_method(name, "bias_backward") == "sum"
    assert library_call_ms(open_library(name, "local-task", 1), BiasBackward(9, 4)) > 0
