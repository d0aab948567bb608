"""Matrix products, gradients of biases and softmax: references, bounds and sweeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from epilogue_helpers import simple
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_operations import DTYPES, PROPERTY, matmuls, output_shape, products, seeds, whole_numbers

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError, RangeError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    DEFAULT_SEED,
    BatchMatmul,
    Distribution,
    ElementTypes,
    Epilogue,
    Loop,
    Matmul,
    Reference,
    Softmax,
    SweepOptions,
    operation_from_dict,
)
from dispatch_profiler.operations.convolution.bias_backward import BIAS_PROBLEMS, BiasBackward
from dispatch_profiler.operations.reductions import TYPES
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare
from dispatch_profiler.workloads import Sweep, sweep_workload

F16 = ElementTypes("f16", "f16", "f16")
BIAS_RELU = Epilogue.parse("bias+relu")


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (Matmul(3456, 1024, 2048, F16), "matmul_3456x1024x2048_f16t_f16t_f16t"),
        (BatchMatmul(16, 512, 64, 512, F16), "batch_matmul_16x512x64x512_f16t_f16t_f16t"),
        (Matmul(1, 2, 3, ElementTypes("i8", "i8", "i32"), "n", "t"), "matmul_1x2x3_i8n_i8t_i32t"),
        (Matmul(1, 2, 3, rhs_layout="n", epilogue=BIAS_RELU), "matmul_1x2x3_f32t_f32n_f32t_bias_relu"),
        (
            BatchMatmul(4, 1, 2, 3, ElementTypes("f8", "f8", "f16"), epilogue=Epilogue.parse("gelu")),
            "batch_matmul_4x1x2x3_f8E4M3FNt_f8E4M3FNt_f16t_gelu",
        ),
    ],
)
def test_names_are_those_of_the_document(operation, name):
    """Kind, problem, then each tensor's type and layout, then the epilogue."""
    assert name == operation.name


@pytest.mark.parametrize(
    ("layouts", "shapes"),
    [
        ("tt", [(2, 4), (4, 3)]),
        ("nt", [(4, 2), (4, 3)]),
        ("tn", [(2, 4), (3, 4)]),
        ("nn", [(4, 2), (3, 4)]),
    ],
)
def test_column_major_operands_are_stored_transposed(layouts, shapes):
    """M=2, N=3, K=4: `n` exchanges the axes of the operand in memory, batch outermost."""
    plain, batched = Matmul(2, 3, 4, F16, *layouts), BatchMatmul(7, 2, 3, 4, F16, *layouts)
    assert shapes == [tensor.shape for tensor in plain.operands]
    assert [(7, *shape) for shape in shapes] == [tensor.shape for tensor in batched.operands]


def test_operands_come_in_order_with_their_types():
    """lhs and rhs have the type of the inputs, bias and result that of the result."""
    operation = Matmul(2, 3, 4, ElementTypes("i8", "i8", "i32"), epilogue=Epilogue.parse("bias"))
    tensors = (*operation.operands, operation.result)
    assert [tensor.name for tensor in tensors] == ["lhs", "rhs", "bias", "result"]
    assert [tensor.type.name for tensor in tensors] == ["i8", "i8", "i32", "i32"]


@pytest.mark.parametrize(("operation", "axis"), [(Matmul(2, 3, 4), 1), (BatchMatmul(5, 2, 3, 4), 2)])
def test_a_bias_has_one_value_a_column(operation, axis):
    """Broadcast against the result, it varies along the columns only."""
    bias = np.arange(3)
    assert axis == operation.bias_axis
    expected = np.broadcast_to(bias, operation.result.shape)
    assert np.array_equal(
        expected, np.broadcast_to(operation.broadcast_operand(bias), operation.result.shape)
    )


def test_loops_are_in_the_order_of_the_linalg_form():
    """linalg.batch_matmul runs over b, m, n, k."""
    m, n, k = Loop("m", 2, "parallel"), Loop("n", 3, "parallel"), Loop("k", 4, "reduction")
    assert (m, n, k) == Matmul(2, 3, 4).loops
    assert (Loop("batch", 5, "parallel"), m, n, k) == BatchMatmul(5, 2, 3, 4).loops


def test_flops_of_the_document():
    """Its 233798.62 GFLOP/s is 2 * 3456 * 1024 * 2048 operations; 16 batches are 16 times as many."""
    assert Matmul(3456, 1024, 2048, F16).flops == 14_495_514_624
    assert BatchMatmul(16, 512, 64, 512, F16).flops == 16 * 2 * 512 * 64 * 512


@pytest.mark.parametrize(
    ("epilogue", "each"), [("none", 0), ("bias", 1), ("relu", 1), ("bias+relu", 2), ("bias+gelu", 6)]
)
def test_an_epilogue_is_counted_once_an_element(epilogue, each):
    """An add for the bias, and what the activation takes, for each of 2 x 3 results."""
    operation = Matmul(2, 3, 4, epilogue=Epilogue.parse(epilogue))
    assert 2 * 2 * 3 * 4 + each * 6 == operation.flops


@PROPERTY
@given(matmuls(activations=["none"]))
def test_counts_follow_from_the_definition(operation):
    """Products, result shape and bytes against those that the naive loops touch."""
    lhs, rhs = (np.zeros(tensor.shape) for tensor in operation.operands[:2])
    factors = products(operation, lhs, rhs)
    multiply_adds = sum(map(len, factors.values()))
    assert output_shape(operation) == operation.result.shape
    assert multiply_adds == math.prod(loop.extent for loop in operation.loops)
    assert 2 * multiply_adds + operation.epilogue.starts_with_bias * len(factors) == operation.flops
    assert multiply_adds == operation.accumulations * len(factors)


@PROPERTY
@given(matmuls())
def test_bytes_are_each_operand_once_and_the_result_once(operation):
    """As many bytes as numpy gives arrays of these shapes and types."""
    arrays = [np.empty(t.shape, DTYPES[t.type.name]) for t in (*operation.operands, operation.result)]
    assert sum(array.nbytes for array in arrays) == operation.bytes


@PROPERTY
@given(matmuls(pairs=[("f64", "f64")]), seeds())
def test_the_contraction_is_einsum(operation, seed):
    """Whole numbers in float64, where both are exact."""
    lhs, rhs = whole_numbers(operation, seed)[:2]
    a = "mk" if operation.lhs_layout == "t" else "km"
    b = "kn" if operation.rhs_layout == "t" else "nk"
    expected = np.einsum(f"...{a},...{b}->...mn", lhs.astype(np.int64), rhs.astype(np.int64))
    assert np.array_equal(expected, operation.contract(lhs, rhs))


@pytest.mark.parametrize("batch", ["1", "5"])
def test_arguments_are_those_of_the_command_line(batch):
    """Shape, then tensors with their layouts, then the epilogue if there is one."""
    types, layouts = ElementTypes("f16", "f16", "f32"), ("n", "t")
    shape = (2, 3, 4, types, *layouts, BIAS_RELU)
    operation = Matmul(*shape) if batch == "1" else BatchMatmul(5, *shape)
    expected = {"m": "2", "n": "3", "k": "4", "lhs": "f16n", "rhs": "f16t", "result": "f32t"}
    assert {"batch_count": batch, **expected, "epilogue": "bias+relu"} == operation.arguments()
    assert "epilogue" not in Matmul(2, 3, 4).arguments()


def test_every_extent_below_one_is_named():
    """All that is wrong with a shape is said at once."""
    with pytest.raises(OperationError, match=r"^matmul: every extent must be at least 1, but got m=0, k=-4$"):
        Matmul(0, 3, -4)
    with pytest.raises(OperationError, match=r"^batch_matmul: every extent must .* but got batch=0$"):
        BatchMatmul(0, 2, 3, 4)


@pytest.mark.parametrize("value", [2.5, 2.0, True, "2"])
def test_an_extent_that_is_no_whole_number_is_refused(value):
    """2.0 and True equal a whole number, but would give equal operations different names."""
    with pytest.raises(OperationError, match="n="):
        Matmul(2, value, 3)


@pytest.mark.parametrize("role", ["lhs", "rhs"])
@given(layout=st.sampled_from(["", "T", "tt", "nhwc"]))
@PROPERTY
def test_an_unknown_layout_is_refused_with_the_operand(role, layout):
    """Only `t` and `n` are layouts of a matrix."""
    for kind, shape in ((Matmul, (2, 3, 4)), (BatchMatmul, (5, 2, 3, 4))):
        with pytest.raises(OperationError, match=f"^unknown layout '{layout}' of {role}$") as caught:
            kind(*shape, **{f"{role}_layout": layout})
        assert caught.value.hint == "available: t (row major), n (column major)"


def test_a_column_major_result_is_refused_with_the_way_around_it():
    """C transposed is B transposed times A transposed."""
    from dispatch_profiler.operations.contraction.matmul import check_layouts

    assert check_layouts("n", "n", "t") is None
    with pytest.raises(
        OperationError, match=r"^the result is stored row major \('t'\), but got 'n'$"
    ) as caught:
        check_layouts("t", "t", "n")
    assert "with lhs and rhs exchanged" in caught.value.hint


@pytest.mark.parametrize("activation", ["gelu", "sigmoid", "tanh"])
@pytest.mark.parametrize(("kind", "shape"), [(Matmul, (2, 3, 4)), (BatchMatmul, (5, 2, 3, 4))])
def test_an_activation_of_real_numbers_is_refused_on_integers(kind, shape, activation):
    """gelu of an i32 is no i32; relu is."""
    types = ElementTypes("i8", "i8", "i32")
    message = rf"^epilogue bias\+{activation} needs a floating-point result, but got i32$"
    with pytest.raises(OperationError, match=message) as caught:
        kind(*shape, types, epilogue=simple(True, activation))
    assert caught.value.hint.startswith(
        "integer results support bias, channel_scale, row_scale, scale_shift, residual, scale, relu, relu6 and clamp"
    )
    assert kind(*shape, types, epilogue=BIAS_RELU).epilogue == BIAS_RELU


SMALL = BiasBackward(3, 5, 7)
SHAPES = [(1, 1, 1), (7, 3, 1), (1, 4, 9), (3, 5, 7), (4096, 2, 1), (300, 3, 100)]


def operands_of(operation: BiasBackward, distribution: Distribution = Distribution.REALS) -> tuple:
    return draw(operation, distribution, 7)


def by_loops(operation: BiasBackward, operands) -> list[float]:
    """Correctly rounded sums of Python's own floats."""
    dy = operands[0].astype(np.float64).tolist()
    return [
        math.fsum(dy[o][c][i] for o in range(operation.outer) for i in range(operation.inner))
        for c in range(operation.channels)
    ]


def plain_kernel(operation: BiasBackward, operands, wrong: str = "") -> list[np.ndarray]:
    """A kernel that adds one element after another in the type of the sums; `wrong` plants a fault."""
    dy = operands[0].astype(operation.sums_type.dtype)
    if wrong == "last outer":
        dy = dy[:-1]
    if wrong == "last inner":
        dy = dy[:, :, :-1]
    if wrong == "mixed axes":
        dy = dy.reshape(operation.outer, operation.inner, operation.channels).transpose(0, 2, 1)
    terms = dy.transpose(1, 0, 2).reshape(operation.channels, -1)
    found = np.add.accumulate(terms, axis=1)[:, -1] / (terms.shape[1] if wrong == "mean" else 1)
    return [found.astype(operation.element_type.dtype)]


# -- reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("type_", TYPES)
def test_the_reference_is_what_loops_compute(type_, distribution):
    operation = BiasBackward(4, 3, 37, type_)
    operands = operands_of(operation, distribution)
    (found,) = operation.reference(operands)
    expected = np.array(by_loops(operation, operands))
    if found.tolerance is None:
        expected = expected.astype(found.expected.dtype)
    np.testing.assert_allclose(found.expected.astype(float), expected.astype(float), rtol=1e-13, atol=1e-13)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_is_the_gradient_of_the_bias_of_a_convolution(batch, channels, size, last, seed):
    """By torch's autograd in float64, in NCHW and NHWC; hypothesis prints the seed."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    images, filters = rng.uniform(-1, 1, (batch, 2, *size)), rng.uniform(-1, 1, (channels, 2, 1, 1))
    dy = rng.uniform(-1, 1, (batch, channels, *size))
    with torch.enable_grad():
        bias = torch.zeros(channels, dtype=torch.float64, requires_grad=True)
        y = torch.conv2d(torch.from_numpy(images), torch.from_numpy(filters), bias)
        (theirs,) = torch.autograd.grad(y, [bias], torch.from_numpy(dy))
    pixels = math.prod(size)
    if last:
        operation, dy = BiasBackward(batch * pixels, channels, 1, "f64"), dy.transpose(0, 2, 3, 1)
    else:
        operation = BiasBackward(batch, channels, pixels, "f64")
    (found,) = operation.reference([dy.reshape(operation.operands[0].shape)])
    np.testing.assert_allclose(found.expected, theirs.numpy(), rtol=1e-12, atol=1e-13)


# -- exact integers and bounds ---------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_integers_are_exact(shape, type_):
    """Any order of summation gives the same result, which must be equal."""
    operation = BiasBackward(*shape, type_)
    (dy,) = operands_of(operation, Distribution.INTEGERS)
    references = operation.reference((dy,))
    assert references[0].tolerance is None
    assert np.isfinite(references[0].expected.astype(float)).all()
    assert compare(operation, plain_kernel(operation, (dy,)), references).passed
    assert compare(operation, plain_kernel(operation, (dy[::-1, :, ::-1],)), references).passed


def test_integers_too_many_to_be_exact_have_a_bound():
    operation = BiasBackward(3, 4)
    (dy,) = operands_of(operation, Distribution.INTEGERS)
    assert operation.reference((dy * np.float32(2**15),))[0].tolerance is not None


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_plain_kernel_passes(shape, type_):
    operation = BiasBackward(*shape, type_)
    operands = operands_of(operation)
    assert compare(operation, plain_kernel(operation, operands), operation.reference(operands)).passed


@pytest.mark.parametrize("distribution", [Distribution.INTEGERS, Distribution.REALS])
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("wrong", ["last outer", "last inner", "mixed axes", "mean"])
def test_a_wrong_formula_fails(wrong, type_, distribution):
    operation = BiasBackward(6, 5, 7, type_)
    operands = operands_of(operation, distribution)
    assert not compare(
        operation, plain_kernel(operation, operands, wrong), operation.reference(operands)
    ).passed


@pytest.mark.parametrize("distribution", [Distribution.INTEGERS, Distribution.REALS])
def test_a_fault_in_any_element_fails_and_is_named(distribution):
    operands = operands_of(SMALL, distribution)
    actual = plain_kernel(SMALL, operands)
    actual[0][3] += np.float32(1e-3)
    comparison = compare(SMALL, actual, SMALL.reference(operands))
    assert not comparison.passed
    assert comparison.message.startswith("1 of 5 elements are wrong; the worst: db[3]")


def test_sums_in_too_narrow_a_type_fail():
    """bf16 keeps 8 bits of a sum of 400 terms."""
    operation = BiasBackward(400, 5, 1, "bf16")
    (dy,) = operands_of(operation)
    narrow = np.zeros((5, 1), dy.dtype)
    for row in dy:
        narrow = (narrow + row).astype(dy.dtype)
    assert not compare(operation, [narrow[:, 0]], operation.reference((dy,))).passed


def test_bounds_are_a_few_roundoffs_for_short_sums():
    """A bound that lets everything through would pass all the tests of right kernels."""
    assert (operation_bound(BiasBackward(8, 4, 2)) < 2e-5).all()
    assert (operation_bound(BiasBackward(8, 4, 2, "f64")) < 1e-13).all()


def operation_bound(operation: BiasBackward) -> np.ndarray:
    return operation.reference(operands_of(operation))[0].tolerance


# -- identity and options --------------------------------------------------------------------------


def test_its_name_its_tensors_and_its_counts():
    assert SMALL.name == "bias_backward_3x5x7_f32t"
    assert BiasBackward(9, 4, type="bf16").name == "bias_backward_9x4x1_bf16t"
    assert [tensor.mlir for tensor in (*SMALL.operands, *SMALL.results)] == [
        "tensor<3x5x7xf32>",
        "tensor<5xf32>",
    ]
    assert (SMALL.accumulations, SMALL.flops, SMALL.bytes) == (21, 105, 4 * (105 + 5))


def test_it_comes_back_from_plain_data():
    assert operation_from_dict(SMALL.to_dict()) == SMALL


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outer": 0}, "bias_backward: every extent must be at least 1, but got outer=0"),
        ({"channels": 2.0}, "bias_backward: .* channels=2.0"),
        ({"inner": -1}, "bias_backward: .* inner=-1"),
        ({"type": "i8"}, "bias_backward: no element type i8"),
        ({"type": "f99"}, "unknown element type 'f99'"),
    ],
)
def test_invalid_fields_are_rejected(fields, reason):
    with pytest.raises(OperationError, match=reason):
        BiasBackward(**{"outer": 2, "channels": 3, **fields})


def test_its_options_imply_it_and_sweep_over_it():
    shapes = {"bias_outer": (2, 3), "bias_channels": (8,), "bias_type": ("f32", "bf16")}
    found = sweep_workload(Sweep(options=SweepOptions(shapes=shapes))).workload.operations
    assert set(found) == {BiasBackward(outer, 8, 1, type_) for outer in (2, 3) for type_ in ("f32", "bf16")}


def test_its_predefined_problems():
    found = sweep_workload(Sweep((BiasBackward.kind,))).workload.operations
    assert set(found) == {BiasBackward(*shape, type_) for shape in BIAS_PROBLEMS for type_ in ("f16", "f32")}


# -- the three commands ----------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 6, 1)])
def test_its_mlir_parses(shape, type_):
    from iree.compiler import ir

    operation = BiasBackward(*shape, type_)
    text = render_module(operation, (Dispatch(operation, Default()),))
    with ir.Context():
        module = ir.Module.parse(text)  # the bindings do not keep it alive for its operations
        (function,) = module.body.operations
        results = ir.FunctionType(function.type).results
        assert [str(each) for each in results] == [operation.results[0].mlir]


softmaxes = st.builds(
    Softmax,
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from(("f32", "f16", "bf16", "f64")),
    st.sampled_from((1.0, 0.125, 1e-3, 30.0)),
)
distributions = st.sampled_from(Softmax.distributions)


def naive(operation: Softmax, x: np.ndarray) -> np.ndarray:
    """Each row by its definition, with sums that round once."""
    found = []
    for row in x.astype(np.float64) * operation.scale:
        terms = [math.exp(each - max(row)) for each in row]
        found.append([term / math.fsum(terms) for term in terms])
    return np.array(found)


def worst(reference: Reference, result: np.ndarray) -> float:
    """The largest error, as a part of its bound."""
    assert reference.tolerance is not None
    return float(np.max(np.abs(result - reference.expected) / reference.tolerance))


@given(softmaxes, distributions)
def test_the_reference_is_the_definition(operation: Softmax, distribution: Distribution):
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    (reference,) = operation.reference([x])
    np.testing.assert_allclose(reference.expected, naive(operation, x), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(reference.expected.sum(axis=1), 1.0, rtol=1e-12)


@given(softmaxes.filter(lambda operation: operation.type == "f32"), distributions, st.booleans())
def test_a_kernel_in_f32_is_within_the_bound(operation: Softmax, distribution: Distribution, stepwise: bool):
    """Also one that scales first, as libraries do, within the bound for libraries."""
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    scale = np.float32(operation.scale)
    top = x.max(axis=1, keepdims=True)
    powers = np.exp(x * scale - top * scale if stepwise else (x - top) * scale)
    (reference,) = operation.reference([x], stepwise=stepwise)
    assert worst(reference, powers / powers.sum(axis=1, keepdims=True)) <= 1.0


@pytest.mark.parametrize("distribution", Softmax.distributions)
def test_wrong_kernels_are_not(distribution: Distribution):
    operation = Softmax(8, 64, "f16", 0.25)
    (x,) = draw(operation, distribution, DEFAULT_SEED)
    (reference,) = operation.reference([x])
    right = naive(operation, x)
    wrong = {
        "not scaled": naive(Softmax(8, 64, "f16"), x),
        "over the other axis": naive(operation, x.T).T,
        "rows exchanged": right[::-1],
        "last element left out": np.pad(naive(operation, x[:, :-1]), ((0, 0), (0, 1))),
    }
    assert {name for name, each in wrong.items() if worst(reference, each) <= 1.0} == set()
    assert worst(reference, right.astype(np.float16)) <= 1.0


def test_offset_elements_overflow_unless_the_maximum_is_subtracted():
    """For every element type with the range of f32."""
    for type_ in ("f32", "bf16"):
        (x,) = draw(Softmax(16, 8, type_), Distribution.OFFSET, DEFAULT_SEED)
        with np.errstate(over="ignore"):
            powers = np.exp(x.astype(np.float32))
        assert np.isinf(powers).any() and (powers == 0.0).all(axis=1).any()


def test_elements_stay_finite_whatever_the_scale():
    for type_, scale in (("f16", 1e-6), ("f32", 1e-37), ("bf16", 1e30)):
        for distribution in Softmax.distributions:
            (x,) = draw(Softmax(3, 5, type_, scale), distribution, DEFAULT_SEED)
            assert np.isfinite(x.astype(np.float64)).all()


def test_names_types_and_work():
    operation = Softmax(128, 768, "f16", 0.125)
    assert (operation.type, operation.name) == ("f16", "softmax_128x768_f16t_scale0p125")
    assert Softmax(2, 3, scale=1e-5).name == "softmax_2x3_f32t_scale1em05"
    assert (Softmax(2, 3).name, Softmax(2, 3).flops) == ("softmax_2x3_f32t", 30)
    assert operation.flops == 6 * 128 * 768
    assert operation.bytes == 2 * 2 * 128 * 768
    assert operation.accumulator.name == operation.sums_type.name == "f32"


def test_a_sweep_has_every_point_and_a_default():
    shapes = {"softmax_rows": (2, 3), "softmax_size": (5,), "softmax_scale": (1.0, 0.5)}
    swept = [make() for make in Softmax.sweep(SweepOptions(shapes))]
    assert swept == [
        Softmax(rows, 5, type_, scale) for rows in (2, 3) for type_ in ("f16", "f32") for scale in (1.0, 0.5)
    ]
    assert len([make() for make in Softmax.sweep(SweepOptions())]) == 6


def test_a_malformed_scale_has_a_hint():
    (option,) = (each for each in Softmax.shape_options if each.name == "softmax_scale")
    assert option.parse("1,0.125") == (1.0, 0.125)
    with pytest.raises(RangeError, match="malformed number in '1,x'"):
        option.parse("1,x")
