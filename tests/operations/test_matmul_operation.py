"""Matmul and batch_matmul: operands, loops, counts, names and rejections."""

from __future__ import annotations

import math

import numpy as np
import pytest
from epilogue_helpers import simple
from hypothesis import given
from hypothesis import strategies as st
from naive_operations import DTYPES, PROPERTY, matmuls, output_shape, products, seeds, whole_numbers

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Epilogue, Loop, Matmul

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
        "integer results support bias, scale_shift, residual, relu, relu6 and clamp"
    )
    assert kind(*shape, types, epilogue=BIAS_RELU).epilogue == BIAS_RELU
