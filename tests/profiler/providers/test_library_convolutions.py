"""Libraries on convolutions, layer norms and gradients of biases: results agree, or the library lacks the type."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from pairwise import pairwise

from dispatch_profiler.operations import (
    BiasBackward,
    Contraction,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    Distribution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.evaluation.device_worker import library_call_ms
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.library_calls import library_method, open_library
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare, compare_result

#: Extents and layouts: both canonical ones, and any.
KINDS: dict[type[Convolution], tuple[dict[str, int], tuple[str, ...]]] = {
    Conv1d: ({"n": 2, "w": 11, "s": 3}, ("nwc", "ncw", "nwc_fwc_ncw", "cwn_wfc_wnc")),
    Conv2d: ({"n": 2, "h": 6, "w": 9, "r": 2, "s": 3}, ("nhwc", "nchw", "nhwc_fhwc_nhwc", "hcwn_cwfh_wnch")),
    Conv3d: (
        {"n": 2, "d": 4, "h": 6, "w": 5, "t": 2, "r": 1, "s": 3},
        ("ndhwc", "ncdhw", "ncdhw_dhwcf_ndhwc", "dnhcw_cdfwh_hncdw"),
    ),
}
MODES = ("forward", "input_backward", "weight_backward")
#: (before, after)
PADDINGS = ((0, None), (1, None), (0, 2), (2, 1))
CHANNELS = ((3, 5, 1), (4, 6, 2), (4, 4, 4), (2, 6, 2))
CONV_TYPES = {
    "f32": ElementTypes(),
    "f64": ElementTypes("f64", "f64", "f64"),
    "f64-f32": ElementTypes("f64", "f64", "f32"),
    "f16": ElementTypes("f16", "f16", "f16"),
    "bf16": ElementTypes("bf16", "bf16", "bf16"),
    "i8": ElementTypes("i8", "i8", "i32"),
}
EPILOGUES = ("none", "bias+relu", "scale_shift+residual")
#: A stride, a dilation and an epilogue with each row, in turn.
OTHERS = list(itertools.product((1, 2, 3), (1, 2), EPILOGUES))
ROWS = pairwise(
    [
        (*row, *OTHERS[7 * number % len(OTHERS)])
        for number, row in enumerate(
            itertools.product(KINDS, range(4), MODES, PADDINGS, CHANNELS, CONV_TYPES)
        )
    ]
)


def operation_of(row: Any) -> Convolution:
    kind, layout, mode, (before, after), (c, k, groups), types, stride, dilation, epilogue = row
    extents, layouts = KINDS[kind]
    rank = kind.rank
    return kind(
        **extents, c=c, k=k, groups=groups, stride=(stride,) * rank, padding=(before,) * rank,
        padding_after=None if after is None else (after,) * rank, types=CONV_TYPES[types], mode=mode,
        dilation=(dilation, 1, 1)[:rank], layout=layouts[layout],
        epilogue=Epilogue.parse("none" if mode == "weight_backward" else epilogue),
    )  # fmt: skip


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return open_library(request.param, "local-task", 1)


def supported(library: Any) -> tuple[str, ...]:
    return (
        ("f32", "f64", "f64-f32", "f16", "bf16") if "torch" in library.version else ("f32", "f64", "f64-f32")
    )


def test_every_convolution_is_computed_or_its_types_are_rejected(library):
    """Exactly on whole numbers where one rounding is all there is, and within the bound on reals."""
    for row in ROWS:
        operation = operation_of(row)
        for distribution in Distribution:
            inputs = draw(operation, distribution, 5)
            try:
                (found,) = library.load(b"").bind("", library.put(operation, inputs)).run()
            except NotSupported as error:
                depends_on_cpu = row[2] == "weight_backward" and "over images" in str(error)
                assert row[5] not in supported(library) or depends_on_cpu, f"{operation.name}: {error}"
                continue
            expected = reference(operation, inputs, stepwise=True)
            comparison = compare_result(operation.result, found, expected)
            assert comparison.passed, f"{operation.name} on {distribution.value}: {comparison.message}"


@pytest.mark.parametrize(("type_", "exponent"), [("f16", -11), ("bf16", -8)])
def test_torch_refuses_gradients_of_weights_that_it_sums_in_a_narrow_type(type_: str, exponent: int):
    """Of images whose gradients are 1 and then half a unit in the last place each, which rounding loses one by one."""
    torch = pytest.importorskip("torch")
    library = open_library("torch", "local-task", 1)
    operation = Conv2d(17, 1, 1, 1, 1, 1, 1, types=CONV_TYPES[type_], mode="weight_backward")
    images = (
        np.array([1.0] + [2.0**exponent] * 16).reshape(17, 1, 1, 1).astype(operation.operands[0].type.dtype)
    )
    inputs = [np.ones_like(images), images]
    name = {"f16": "_is_mkldnn_fp16_supported", "bf16": "_is_mkldnn_bf16_supported"}[type_]
    if getattr(torch.ops.mkldnn, name)():
        (found,) = library.load(b"").bind("", library.put(operation, inputs)).run()
        assert float(np.asarray(found, np.float64).item()) == 1.0 + 16 * 2.0**exponent
    else:
        with pytest.raises(NotSupported, match=f"sums gradients of weights over images in {type_}"):
            library.load(b"").bind("", library.put(operation, inputs)).run()


def test_rows_have_every_rank_with_every_mode():
    assert {(row[0], row[2]) for row in ROWS} == set(itertools.product(KINDS, MODES))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_operands_are_left_as_they_were_and_a_second_run_is_the_same(library, kind, mode):
    operation = operation_of((kind, 3, mode, (0, 2), (4, 6, 2), "f32", 2, 1, "bias+relu"))
    inputs = draw(operation, Distribution.REALS, 3)
    before = [array.copy() for array in inputs]
    call = library.load(b"").bind("", library.put(operation, inputs))
    (first,) = call.run()
    assert call.time(2) > 0
    np.testing.assert_array_equal(call.run()[0], first)
    for array, was in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, was)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_call_is_that_of_the_same_mode(monkeypatch, library, kind, mode):
    """A weight gradient has no bias, so the smallest problem of its kind is another."""
    put, seen = library.put, []

    def note(operation: Contraction, inputs: Any) -> Any:
        seen.append(operation)
        return put(operation, inputs)

    monkeypatch.setattr(library, "put", note)
    operation = operation_of((kind, 0, mode, (0, None), (3, 5, 1), "f32", 1, 1, "bias+relu"))
    assert library_call_ms(library, operation) > 0
    (smallest,) = seen
    assert (smallest.mode, smallest.epilogue, smallest.result.elements) == (mode, operation.epilogue, 1)


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d"])
def test_every_rank_has_a_method(kind):
    assert (library_method("numpy", kind), library_method("torch", kind)) == ("im2col", kind)


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


BIAS_SHAPES = [(1, 1, 1), (3, 5, 1), (1, 7, 33), (9, 4, 100), (5000, 3, 1), (2, 3, 5000)]


@pytest.mark.parametrize("shape", BIAS_SHAPES)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_library_agrees_with_the_gradient_of_a_bias(name, type_, shape):
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
