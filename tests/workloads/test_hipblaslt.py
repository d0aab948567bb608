"""hipBLASLt logs: calls, the line parser against PyYAML, and lines that are damaged at random."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import UnsupportedFeature, UsageError, WorkloadError
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Epilogue, Matmul
from dispatch_profiler.workloads import hipblaslt, merged, read_workload, write_workload
from dispatch_profiler.workloads.hipblaslt import MOST_CHARACTERS, FlowMaps, gemm_call, parse_flow_map
from dispatch_profiler.workloads.workload_file import workload_text

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
    fields: dict[str, str], a: np.ndarray, b: np.ndarray, c: np.ndarray, bias: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """The flat buffer D that hipBLASLt computes from the flat buffers A, B and C."""
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
    found = float(fields["alpha"]) * np.einsum("bmk,bkn->bmn", op_a, op_b)
    if fields.get("scaleAlpha_vector") == "true":
        found = found * scale[:, None]
    if fields.get("bias_vector") == "true":
        found = found + bias[:, None]
    found = found + float(fields["beta"]) * column_major(c, m, n, m * n, batch)
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
        "alpha": draw(st.sampled_from(["1.0", "0.125", "-3"])),
        "beta": draw(st.sampled_from(["0.0", "1.0", "-0.7"])),
    }
    if draw(st.booleans()):
        fields |= {"bias_vector": "true", "bias_source": "d", "bias_type": "f64_r", "scale_type": "f64_r"}
        fields["scaleAlpha_vector"] = draw(st.sampled_from(["true", "false"]))
    if fields["transB"] == "N" and draw(st.booleans()):
        fields["stride_a"] = "0"
    return fields


@settings(max_examples=60, derandomize=True)
@given(calls(), st.integers(0, 2**32 - 1))
def test_the_operation_computes_the_column_major_product_of_the_log(fields: dict[str, str], seed: int):
    """On the same flat buffers: B is lhs, A is rhs, and the result is D, element by element in memory."""
    rng = np.random.default_rng(seed)
    m, n, k, batch = (int(fields[name]) for name in ("M", "N", "K", "batch_count"))
    shares_a = fields.get("stride_a") == "0"
    a, b = rng.standard_normal((1 if shares_a else batch) * m * k), rng.standard_normal(batch * n * k)
    c, bias, scale = rng.standard_normal(batch * m * n), rng.standard_normal(m), rng.standard_normal(m)
    operation = gemm_call(fields).operation
    lhs, rhs, *rest = operation.operands
    assert isinstance(operation, BatchMatmul) == (batch > 1 and not shares_a)
    extra = {"bias": bias, "shift": bias, "scale": scale, "residual": c}
    (found,) = operation.reference(
        [b.reshape(lhs.shape), a.reshape(rhs.shape), *(extra[each.name].reshape(each.shape) for each in rest)]
    )
    np.testing.assert_allclose(
        found.expected.ravel(), product(fields, a, b, c, bias, scale), rtol=1e-12, atol=1e-12
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


@pytest.mark.parametrize(
    ("spelled", "type_"),
    [("s", "f32"), ("single", "f32"), ("d", "f64"), ("double", "f64"), ("F32_R", "f32"), ("f64", "f64")],
)
def test_types_have_several_spellings(spelled: str, type_: str):
    fields = dict.fromkeys(("a_type", "b_type", "c_type", "d_type", "compute_type"), spelled)
    assert operation_of(**fields) == Matmul(5, 3, 4, ElementTypes(type_, type_, type_))


def test_half_precision_may_be_summed_in_its_own_type():
    fields = dict.fromkeys(("a_type", "b_type", "c_type", "d_type", "compute_type"), "f16_r")
    assert operation_of(**fields) == Matmul(5, 3, 4, ElementTypes("f16", "f16", "f16", "f16"))
    with pytest.raises(
        UnsupportedFeature,
        match=r"^a_type=f16_r, b_type=f16_r, d_type=f32_r, compute_type=f16_r: .* narrower",
    ):
        operation_of(**{**fields, "d_type": "f32_r"})


def test_types_of_a_and_b_may_differ():
    """A is the rhs of the row-major product, B the lhs."""
    fields = {"a_type": "f8_r", "b_type": "bf8_r", "c_type": "f16_r", "d_type": "f16_r"}
    assert operation_of(**fields) == Matmul(5, 3, 4, ElementTypes("f8E5M2", "f8E4M3FN", "f16"))


@pytest.mark.parametrize("fields", [{"compute_input_typeA": "f16_r"}, {"compute_type": "c_f32_f16_r"}])
def test_operands_that_are_widened_before_they_are_multiplied_keep_their_values(fields: dict[str, str]):
    types = {"a_type": "f8_r", "b_type": "f16_r", "c_type": "f16_r", "d_type": "f16_r"}
    assert operation_of(**types, **fields) == Matmul(5, 3, 4, ElementTypes("f16", "f8", "f16"))


def test_a_bias_of_the_default_type_has_the_results_type():
    assert operation_of(bias_vector="true", bias_type="default").epilogue == Epilogue.parse("bias")


def test_fields_that_are_false_or_do_not_matter_are_no_features():
    """Of other versions of hipBLASLt, too."""
    fields = {"swizzle_a": "0", "amaxScaleA": "false", "scale_mode_b": "0", "activation_arg1": "0.5"}
    assert operation_of(**fields, compute_input_typeA="f32_r", use_ext="true") == Matmul(5, 3, 4)


def test_a_field_in_two_spellings_is_damage():
    with pytest.raises(WorkloadError, match=r"^swizzle_a is given twice$"):
        operation_of(swizzleA="0", swizzle_a="0")


def test_a_bias_and_an_activation_are_the_epilogue():
    """The type of a bias that is not there does not matter."""
    bias = {"bias_vector": "true", "bias_type": "f32_r"}
    assert operation_of(**bias, activation_type="gelu") == Matmul(
        5, 3, 4, epilogue=Epilogue.parse("bias+gelu_tanh")
    )
    half = {f"{name}_type": "f16_r" for name in "abcd"}
    assert operation_of(**half, bias_type="f32_r", bias_vector="false").epilogue.is_empty


@pytest.mark.parametrize(
    ("fields", "epilogue"),
    [
        ({"alpha": "2.0"}, "scale(2)"),
        ({"beta": "-0.5"}, "residual(-0.5)"),
        ({"alpha": "1e-3", "beta": "3", "activation_type": "relu"}, "scale(0.001)+residual(3)+relu"),
        (
            {"alpha": "0.5", "bias_vector": "true", "bias_type": "f32_r", "beta": "1"},
            "scale(0.5)+bias+residual",
        ),
    ],
)
def test_other_factors_than_1_are_steps(fields: dict[str, str], epilogue: str):
    """D = act(alpha A B + bias + beta C)."""
    assert operation_of(**fields) == Matmul(5, 3, 4, epilogue=Epilogue.parse(epilogue))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"alpha": "0"}, "alpha=0: nothing is multiplied"),
        ({"beta": "inf"}, "beta=inf: only finite factors are supported"),
        (
            {"alpha": "1e39"},
            "alpha=1e+39, beta=0: scale(1e+39) has a number beyond 3.40282e+38, the largest value of f32",
        ),
        (
            {"beta": "0.5", "c_type": "f16_r"},
            "beta=0.5 and c_type=f16_r: only a C of the result's type f32_r is added",
        ),
        (
            {"beta": "1", "batch_count": "2", "stride_c": "0"},
            "stride_c=0: products of a batch do not share operands",
        ),
        (
            {"compute_input_typeA": "bf16_r"},
            "compute_input_typeA=bf16_r and a_type=f32_r: operands are not converted before they are multiplied",
        ),
        (
            {"compute_type": "c_f32_bf16_r"},
            "compute_type=f32_bf16_r: operands are not converted before they are multiplied",
        ),
        ({"amaxScaleB": "true"}, "amaxScaleB=true: operands are not scaled by their largest magnitude"),
        ({"amax_d": "1"}, "amaxD=1: the largest magnitude of the result is not computed"),
        ({"swizzle_a": "1"}, "swizzleA=1: operands are not swizzled"),
        ({"SwizzleB": "true"}, "swizzleB=true: operands are not swizzled"),
        ({"scale_mode_b": "2"}, "scale_mode_b=2: an unknown field that may change the result"),
        ({"bias_stride": "64"}, "bias_stride=64: an unknown field that may change the result"),
        ({"alpha": "nan"}, "alpha=nan: only finite factors are supported"),
        ({"a_type": "f8_fnuz_r"}, "a_type=f8_fnuz_r: fnuz types are not supported"),
        ({"b_type": "i4_r"}, "b_type=i4_r: types of less than 8 bits are not supported"),
        ({"d_type": "f7_r"}, "d_type=f7_r: available: f64_r, f32_r, f16_r, bf16_r, f8_r, bf8_r, i8_r, i32_r"),
        (
            {"b_type": "f16_r", "d_type": "i32_r"},
            "a_type=f32_r, b_type=f16_r, d_type=i32_r, compute_type=f32_r: f16 and f32 inputs need a floating-point "
            "result, but got result=i32",
        ),
        (
            {"b_type": "f16_r", "compute_type": "f16_r"},
            "compute_type=f16_r: f16 and f32 products are summed in f32",
        ),
        (
            {"b_type": "f16_r", "compute_type": "f32_f16_r"},
            "compute_type=f32_f16_r: operands are not converted before they are multiplied",
        ),
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
        ({"M": "9" * 30}, f"M: expected a whole number of at most 18 digits, but got '{'9' * 30}'"),
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
        # C is read if beta is 1.
        ({"ldc": "8"}, False),
        ({"ldc": "8", "beta": "1"}, True),
        # Arrays of pointers.
        ({"batch_count": "2", "batch_mode": "1"}, True),
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


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.+-]{0,12}", fullmatch=True)
WORDS = st.from_regex(r"-?[A-Za-z0-9_.+][A-Za-z0-9_.+-]{0,12}", fullmatch=True)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
#: Words of a plain scalar, such as the name of a kernel.
PLAIN = st.from_regex(r"[A-Za-z0-9_.+/()<=;$~^]([!\"$-+.-9;-=@-Z\\^-z|~]|::?[a-z]){0,12}", fullmatch=True)
#: How a value is written.
VALUES = st.one_of(
    WORDS,
    PLAIN,
    st.lists(PLAIN, min_size=2, max_size=3).map("  ".join),
    st.just(""),
    st.lists(WORDS, min_size=2, max_size=3).map(" ".join),
    PRINTABLE.map(lambda text: "'" + text.replace("'", "''") + "'"),
    PRINTABLE.map(lambda text: '"' + text.replace("\\", "/").replace('"', "/") + '"'),
)
SPACE = st.sampled_from(["", " ", "  "])


@st.composite
def lines(draw: st.DrawFn, values: st.SearchStrategy[str] = VALUES, *, usual: bool = False) -> str:
    """A line of a log; `usual`: as hipBLASLt writes it."""
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    pairs = [f"{name}: {draw(values)}" for name in names]
    if usual:
        return "- {" + ", ".join(pairs) + "}"
    return "- {" + ",".join(draw(SPACE) + pair + draw(SPACE) for pair in pairs) + "}" + draw(SPACE)


def by_yaml(line: str) -> object:
    return yaml.load(line, Loader=yaml.BaseLoader)


@settings(max_examples=50, derandomize=True)
@given(lines(WORDS, usual=True))
def test_a_line_as_hipblaslt_writes_it_is_read_as_pyyaml_reads_it(line: str):
    assert [parse_flow_map(line)] == by_yaml(line)


@settings(max_examples=50, derandomize=True)
@given(lines())
def test_quotes_spaces_and_empty_values_are_read_as_pyyaml_reads_them(line: str):
    assert [parse_flow_map(line)] == by_yaml(line)


def outcome(parse: Callable[[str], dict[str, str]], line: str) -> dict[str, str] | str:
    """The fields of a line, or why it has none."""
    try:
        return parse(line)
    except WorkloadError as error:
        return str(error)


@st.composite
def logs(draw: st.DrawFn) -> list[str]:
    """A line, and lines that differ from it in numbers and in a few characters."""
    line = draw(lines(st.one_of(WORDS, st.integers(0, 9999).map(str)), usual=True))
    numbers = st.integers(0, 9999).map(str)
    others = draw(st.lists(st.builds(lambda number: re.sub(r"(?<= )\d+", number, line), numbers), max_size=3))
    at, lost = draw(st.integers(0, 60)), draw(st.integers(0, 2))
    added = draw(st.text("-{}[],: #'\"ab12\n\u0663", max_size=3))
    return [line, *others, line[:at] + added + line[at + lost :], line]


@settings(max_examples=50, derandomize=True)
@example(["- {a: 1}", "- {a: \u0663}", "- {a: 1.5}", "- {a: 12}  "])
@example(["- {a: 1.5}", "- {a: 125}", "- {a: 2}", "- {a: }", "- {b: 2, a: 1.5}"])
@given(logs())
def test_lines_after_a_similar_line_are_read_as_they_are_alone(log: list[str]):
    maps = FlowMaps()
    for line in log:
        assert outcome(maps.parse, line) == outcome(parse_flow_map, line)


def test_a_line_that_differs_in_numbers_only_is_not_parsed_again(monkeypatch):
    maps = FlowMaps()
    maps.parse("- {function: matmul, M: 768, alpha: 1.0}")
    maps.parse("- {function: matmul, M: 768}")
    monkeypatch.setattr(hipblaslt, "parse_flow_map", None)
    assert maps.parse("- {function: matmul, M: 5, alpha: 1.0}") == {
        "function": "matmul",
        "M": "5",
        "alpha": "1.0",
    }


def test_a_log_may_have_many_forms_of_lines_and_long_ones():
    maps = FlowMaps()
    for name in [f"field_{at % 30}" for at in range(60)]:
        assert maps.parse(f"- {{{name}: 1}}") == {name: "1"}
    maps = FlowMaps()
    maps.parse("- {M: 1}")
    with pytest.raises(WorkloadError, match="more than 10000 characters"):
        maps.parse("- {M: " + "1" * MOST_CHARACTERS + "}")


@pytest.mark.slow
@settings(max_examples=80, derandomize=True)
@example("- {a: 1, a: 2}", 0, 0, "")
@example("- {a: 1}", 8, 0, "\t")
@example("- {a: 0, b: ''}", 11, 1, "")
@given(lines(), st.integers(0, 60), st.integers(0, 3), st.text("-{}[],:#&*!|>'\"%@`? \\ab1.\t", max_size=3))
def test_a_damaged_line_is_rejected_or_read_as_pyyaml_reads_it(line: str, at: int, lost: int, added: str):
    damaged = line[:at] + added + line[at + lost :]
    try:
        fields = parse_flow_map(damaged)
    except WorkloadError:
        return
    assert [fields] == by_yaml(damaged)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("- {M: 1, N: 2", "the line ends within a field after M: 'N: 2'"),
        ("- {M: 1, ", "the line ends after M, without a closing brace"),
        ("- {M: 1,, N: 2}", "an empty field after M"),
        ("- {}", "an empty field"),
        ("- {M: 1, M: 2}", "M is given twice"),
        ("- {M: '1', M: 2}", "M is given twice"),
        ("- {M: [1, 2]}", "expected `name: value`, but got 'M: [1, 2]}'"),
        ("- {M: 1, N: {k: 2}}", "expected `name: value` after M, but got 'N: {k: 2}}'"),
        ("- {M: &a 1}", "expected `name: value`, but got 'M: &a 1}'"),
        ("- {M: !!int 1}", "expected `name: value`, but got 'M: !!int 1}'"),
        ("- {M:1}", "expected `name: value`, but got 'M:1}'"),
        ("- {M: 1} N", "unexpected text after the closing brace: 'N'"),
        ("{M: 1}", "expected a line such as `- {function: matmul, M: 768, ...}`"),
    ],
)
def test_the_reason_says_where_a_line_is_damaged(line: str, reason: str):
    with pytest.raises(WorkloadError) as raised:
        parse_flow_map(line)
    assert str(raised.value) == reason


def test_names_of_kernels_are_read():
    """Mask 128 adds them."""
    name = "void gemm<128,64>"
    assert parse_flow_map("- {kernel_name: Cijk<f32(*)>::x=1;@2, M: 1}") == {
        "kernel_name": "Cijk<f32(*)>::x=1;@2",
        "M": "1",
    }
    assert parse_flow_map(f"- {{kernel_name: '{name}', M: 1}}") == {"kernel_name": name, "M": "1"}


def test_a_comment_after_a_line_is_ignored():
    assert parse_flow_map("- {M: 1} # one") == {"M": "1"}


def test_a_long_line_is_rejected():
    with pytest.raises(WorkloadError, match="more than 10000 characters"):
        parse_flow_map("- {M: " + "1" * MOST_CHARACTERS + "}")


@pytest.mark.parametrize(
    "line", ["- {" + "a: " * 3000, "- {" + "a: 1, " * 1600 + "!", "- {M: " + "1" * 9000 + "[}"]
)
def test_a_long_damaged_line_takes_no_longer_than_another(line: str):
    """Patterns that backtrack would take minutes, and the test's time limit would end it."""
    with pytest.raises(WorkloadError):
        parse_flow_map(line)


ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "benchmarks" / "workloads"
BENCH = (
    "hipblaslt-bench --api_method c -m 3 -n 5 -k 4 --lda 3 --stride_a 0 --alpha 1.000000 --transA N --batch_count 2 "
    "--bias_vector --a_type f32_r --activation_type gelu"
)
TABLE = "n,h,w,c,k,r,s,type,count,name\n1,8,8,4,4,3,3,f16,2,first\n1,8,8,4,4,1,1,f16,,second"
ROCBLAS = "- { rocblas_function: \"rocblas_sgemm\", transA: 'N', transB: 'T', M: 8, N: 6, K: 4, alpha: 1, beta: 0, lda: 8 }"
CSV = "transA,transB,M,N,K,a_type,b_type,d_type,compute_type\nT,N,3,5,4,f32_r,f32_r,f32_r,f32_r"
COMMANDS = "\n".join((SAMPLES / "miopen_commands.txt").read_text().splitlines()[-9:])
TEXTS = {
    "log": "\n".join((SAMPLES / "gemm_log.yaml").read_text().splitlines()[:3]),
    "bench": BENCH,
    "csv": CSV,
    "table": TABLE,
    "rocblas": ROCBLAS,
    "counted": f"   3 {BENCH}",
    "commands": COMMANDS,
    "transposed": "conv -m trans -n 2 -c 4 -H 5 -W 6 -k 6 -y 3 -x 2 -p 1 -q 0 -u 2 -v 3 -Y 1 -X 2 -g 2 -F 10 -b 1",
    "workload": workload_text(read_workload(SAMPLES / "resnet50_f32.txt").workload),
}
PIECES = st.one_of(
    st.sampled_from(
        ["0", "-1", "9" * 18, "9" * 30, "1e9", "nan", "", " ", "\n", ",", ": ", "{", "}", "-", "\x00", "é"]
    ),
    st.text(max_size=3),
)
#: Places in a text, each with how much is lost and what is put there.
DAMAGE = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), PIECES), min_size=1, max_size=4)


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=60, derandomize=True)
@given(DAMAGE)
def test_damage_is_reported_and_what_is_left_can_be_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, damage: list[tuple[float, int, str]]
):
    text = TEXTS[name]
    for share, lost, added in damage:
        at = round(share * len(text))
        text = text[:at] + added + text[at + lost :]
    path = tmp_path_factory.getbasetemp() / f"{name}.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_workload(path)
    except UsageError as error:
        assert len(str(error)) < 1000
        return
    assert all(0 < len(line.reason) < 1000 and "\n" not in line.reason for line in found.skipped)
    assert found.workload == merged(list(found.workload.entries))
    copy = tmp_path_factory.getbasetemp() / "copy.yaml"
    write_workload(found.workload, copy)
    assert read_workload(copy).workload == found.workload
