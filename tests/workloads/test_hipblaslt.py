"""Calls in hipBLASLt logs: the row-major operation computes the column-major product that the log describes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import UnsupportedFeature, WorkloadError
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Epilogue, Matmul
from dispatch_profiler.workloads.hipblaslt import gemm_call

CALL = {
    "function": "matmul", "M": "3", "N": "5", "K": "4", "transA": "N", "transB": "N", "batch_count": "1",
    "alpha": "1.0", "beta": "0.0", "a_type": "f32_r", "b_type": "f32_r", "c_type": "f32_r", "d_type": "f32_r",
    "compute_type": "c_f32_r",
}  # fmt: skip
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + np.exp(-x)),
}


def column_major(buffer: np.ndarray, rows: int, columns: int, stride: int, batch: int) -> np.ndarray:
    """`batch` dense column-major matrices in a flat buffer, `stride` elements apart."""
    size = buffer.itemsize
    return np.lib.stride_tricks.as_strided(
        buffer, (batch, rows, columns), (stride * size, size, rows * size), writeable=True
    )


def product(
    fields: dict[str, str], a: np.ndarray, b: np.ndarray, bias: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """The flat buffer D that hipBLASLt computes from the flat buffers A and B."""
    m, n, k, batch = (int(fields[name]) for name in ("M", "N", "K", "batch_count"))
    stride_a = 0 if fields.get("stride_a") == "0" else m * k
    shape_a = (m, k) if fields["transA"] == "N" else (k, m)
    shape_b = (k, n) if fields["transB"] == "N" else (n, k)
    op_a = column_major(a, *shape_a, stride_a, batch)
    op_b = column_major(b, *shape_b, n * k, batch)
    if fields["transA"] != "N":
        op_a = op_a.swapaxes(1, 2)
    if fields["transB"] != "N":
        op_b = op_b.swapaxes(1, 2)
    found = np.einsum("bmk,bkn->bmn", op_a, op_b)
    if fields.get("scaleAlpha_vector") == "true":
        found = found * scale[:, None]
    if fields.get("bias_vector") == "true":
        found = found + bias[:, None]
    d = np.empty(batch * m * n)
    column_major(d, m, n, m * n, batch)[...] = ACTIVATIONS[fields.get("activation_type", "none")](found)
    return d


@st.composite
def calls(draw: st.DrawFn) -> dict[str, str]:
    sizes = {name: str(draw(st.integers(1, 6))) for name in ("M", "N", "K", "batch_count")}
    trans = {name: draw(st.sampled_from("NTC")) for name in ("transA", "transB")}
    types = {f"{name}_type": "f64_r" for name in "abcd"} | {"compute_type": "c_f64_r"}
    fields = {
        **CALL,
        **sizes,
        **trans,
        **types,
        "activation_type": draw(st.sampled_from(sorted(ACTIVATIONS))),
    }
    if draw(st.booleans()):
        fields |= {"bias_vector": "true", "bias_source": "d", "bias_type": "f64_r", "scale_type": "f64_r"}
        fields["scaleAlpha_vector"] = draw(st.sampled_from(["true", "false"]))
    if fields["transB"] == "N" and draw(st.booleans()):
        fields["stride_a"] = "0"
    return fields


@settings(max_examples=200, derandomize=True)
@given(calls(), st.integers(0, 2**32 - 1))
def test_the_operation_computes_the_column_major_product_of_the_log(fields: dict[str, str], seed: int):
    """On the same flat buffers: B is lhs, A is rhs, and the result is D, element by element in memory."""
    rng = np.random.default_rng(seed)
    m, n, k, batch = (int(fields[name]) for name in ("M", "N", "K", "batch_count"))
    shares_a = fields.get("stride_a") == "0"
    a, b = rng.standard_normal((1 if shares_a else batch) * m * k), rng.standard_normal(batch * n * k)
    bias, scale = rng.standard_normal(m), rng.standard_normal(m)
    operation = gemm_call(fields).operation
    lhs, rhs, *rest = operation.operands
    assert isinstance(operation, BatchMatmul) == (batch > 1 and not shares_a)
    extra = {"bias": bias, "shift": bias, "scale": scale}
    (found,) = operation.reference(
        [b.reshape(lhs.shape), a.reshape(rhs.shape), *(extra[each.name] for each in rest)]
    )
    np.testing.assert_allclose(
        found.expected.ravel(), product(fields, a, b, bias, scale), rtol=1e-12, atol=1e-12
    )


def operation_of(**fields: str) -> object:
    return gemm_call({**CALL, **fields}).operation


def test_shapes_transposes_and_counts():
    found = gemm_call({**CALL, "M": "768", "N": "128", "K": "64", "transA": "T", "call_count": "48"})
    assert found.operation == Matmul(128, 768, 64, lhs_layout="t", rhs_layout="n")
    assert (found.count, found.has_gaps) == (48, False)
    assert gemm_call(CALL).count == 1


@pytest.mark.parametrize(
    ("a", "d", "compute", "types"),
    [
        ("f64_r", "f64_r", "c_f64_r", ElementTypes("f64", "f64", "f64")),
        ("f16_r", "f16_r", "f32_r", ElementTypes("f16", "f16", "f16")),
        ("bf16_r", "f32_r", "c_f32_r", ElementTypes("bf16", "bf16", "f32")),
        ("f8_r", "bf16_r", "c_f32_r", ElementTypes("f8", "f8", "bf16")),
        ("i8_r", "i32_r", "c_i32_r", ElementTypes("i8", "i8", "i32")),
    ],
)
def test_types(a: str, d: str, compute: str, types: ElementTypes):
    found = operation_of(a_type=a, b_type=a, c_type=d, d_type=d, compute_type=compute)
    assert found == Matmul(5, 3, 4, types)


def test_a_bias_and_an_activation_are_the_epilogue():
    """The type of a bias that is not there does not matter."""
    bias = {"bias_vector": "true", "bias_type": "f32_r"}
    assert operation_of(**bias, activation_type="gelu") == Matmul(
        5, 3, 4, epilogue=Epilogue.parse("bias+gelu_tanh")
    )
    half = {f"{name}_type": "f16_r" for name in "abcd"}
    assert operation_of(**half, bias_type="f32_r", bias_vector="false").epilogue.is_empty


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"alpha": "2.0"}, "alpha=2: only alpha=1 is supported"),
        ({"beta": "1.0"}, "beta=1: only beta=0 is supported"),
        ({"alpha": "nan"}, "alpha=nan: only alpha=1 is supported"),
        ({"a_type": "f8_fnuz_r"}, "a_type=f8_fnuz_r: fnuz types are not supported"),
        ({"d_type": "bf8_r"}, "d_type=bf8_r: available: f64_r, f32_r, f16_r, bf16_r, f8_r, i8_r, i32_r"),
        ({"b_type": "f16_r"}, "a_type=f32_r and b_type=f16_r: both must be the same type"),
        ({"compute_type": "c_xf32_r"}, "compute_type=xf32_r: f32 products are summed in f32"),
        (
            {"bias_vector": "true", "bias_type": "f16_r"},
            "a bias of type f16_r: only a bias of the result's type f32_r is supported",
        ),
        (
            {"bias_vector": "true", "bias_source": "a"},
            "bias_source=a: only a bias of the result d is supported",
        ),
        ({"activation_type": "clamp"}, "activation_type=clamp: available: none, relu, gelu, swish, silu"),
        ({"scaleA": "2"}, "scaleA=2: operands are not scaled by vectors or blocks"),
        (
            {"scaleA": "1", "scaleB": "v"},
            "scaleB=v: operands are not scaled by vectors or blocks",
        ),
        ({"scaleD": "1"}, "scaleD=1: results are not scaled"),
        (
            {"scaleAlpha_vector": "true"},
            "scaleAlpha_vector: only supported with a bias, and with scale_type and bias_type equal to d_type",
        ),
        ({"gradient": "true"}, "gradient=true: gradients of an epilogue are not computed"),
        ({"use_e": "true"}, "use_e=true: an epilogue has no second result"),
        ({"function": "layernorm"}, "function 'layernorm': only matmul is supported"),
        (
            {"batch_count": "2", "stride_b": "0"},
            "stride_b=0: products of a batch do not share operands",
        ),
        (
            {"batch_count": "2", "stride_a": "0", "transB": "T"},
            "stride_a=0: products of a batch do not share operands",
        ),
    ],
)
def test_an_unsupported_feature_is_named_with_its_value(fields: dict[str, str], reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        operation_of(**fields)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"M": ""}, "M has no value"),
        ({"M": "-5"}, "M must be at least 1, but got -5"),
        ({"M": "0"}, "M must be at least 1, but got 0"),
        ({"M": "3.5"}, "M: expected a whole number, but got '3.5'"),
        ({"M": "9" * 30}, f"M: expected a whole number, but got '{'9' * 30}'"),
        ({"transA": "Q"}, "transA: expected N or T, but got 'Q'"),
        ({"call_count": "0"}, "call_count must be at least 1, but got 0"),
        ({"alpha": "one"}, "alpha: expected a number, but got 'one'"),
        ({"lda": "2"}, "lda must be at least 3, but got 2"),
        ({"batch_count": "2", "stride_d": "0"}, "stride_d is 0, but batch_count is 2"),
    ],
)
def test_a_damaged_field_is_named_with_its_value(fields: dict[str, str], reason: str):
    with pytest.raises(WorkloadError) as raised:
        operation_of(**fields)
    assert str(raised.value) == reason
    assert not isinstance(raised.value, UnsupportedFeature)


@pytest.mark.parametrize(
    "name", ["M", "N", "K", "transA", "transB", "a_type", "b_type", "d_type", "compute_type"]
)
def test_a_missing_field_is_named(name: str):
    with pytest.raises(WorkloadError, match=f"^{name} is missing$"):
        gemm_call({key: value for key, value in CALL.items() if key != name})


@pytest.mark.parametrize(
    ("fields", "has_gaps"),
    [
        ({"lda": "3", "ldb": "4", "ldd": "3"}, False),
        ({"lda": "8"}, True),
        ({"ldd": "8"}, True),
        ({"batch_count": "2", "stride_a": "12", "stride_b": "20", "stride_d": "15"}, False),
        ({"batch_count": "2", "stride_a": "100"}, True),
        # Attention heads that alternate in memory.
        ({"batch_count": "2", "lda": "6", "stride_a": "3"}, True),
    ],
)
def test_matrices_that_are_parts_of_larger_ones_are_noted(fields: dict[str, str], has_gaps: bool):
    assert gemm_call({**CALL, **fields}).has_gaps is has_gaps


@pytest.mark.parametrize("value", ["1", "s"])
def test_a_factor_of_an_operand_is_left_out_and_noted(value: str):
    """As in every log of f8 products; its value is not in the log."""
    f8 = {"a_type": "f8_r", "b_type": "f8_r", "c_type": "bf16_r", "d_type": "bf16_r"}
    found = gemm_call({**CALL, **f8, "scaleA": value, "scaleB": value})
    assert found.operation == Matmul(5, 3, 4, ElementTypes("f8", "f8", "bf16"))
    assert found.is_scaled
    assert not gemm_call({**CALL, "scaleA": "0"}).is_scaled
