"""Element types hold what they say, and only pairs of types that a kernel can sum are accepted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from naive_operations import ACCUMULATORS, DTYPES, FLOATS, FORMATS, TYPE_PAIRS

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import ELEMENT_TYPES, ElementTypes, Tensor, element_type


def test_the_table_holds_seven_types():
    """These types, and no others, can stand in an operation."""
    assert {*FLOATS, "i8", "i32"} == set(ELEMENT_TYPES)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("f64", 64), ("f32", 32), ("f16", 16), ("bf16", 16), ("f8E4M3FN", 8), ("i8", 8), ("i32", 32)],
)
def test_a_type_is_held_in_its_own_width(name, bits):
    """The host's type is as wide as the type's name says."""
    row = element_type(name)
    assert (name, bits, bits // 8, np.dtype(DTYPES[name])) == (row.name, row.bits, row.bytes, row.dtype)


@pytest.mark.parametrize(("name", "accumulator"), ACCUMULATORS.items())
def test_sums_are_held_in_the_accumulator(name, accumulator):
    """Narrow floats are summed in f32, f64 in f64, i8 in i32."""
    assert element_type(accumulator) is element_type(name).accumulator


@pytest.mark.parametrize("name", FLOATS)
def test_the_unit_roundoff_is_half_the_distance_from_one_to_the_next_number(name):
    """1 + 2u is the next number after 1, and nothing lies between."""
    u = element_type(name).unit_roundoff
    type_ = DTYPES[name]
    assert 1 + 2 * u == float(np.nextafter(type_(1), type_(2)))


@pytest.mark.parametrize("name", FLOATS[2:])
def test_every_integer_up_to_the_bound_is_held_and_the_next_is_not(name):
    """Counting up in the type loses nothing before `exact_integers`."""
    bound = element_type(name).exact_integers
    counted = np.arange(bound + 2, dtype=np.float64)
    is_held = counted.astype(DTYPES[name]).astype(np.float64) == counted
    assert [True] * (bound + 1) + [False] == is_held.tolist()


@pytest.mark.parametrize(("name", "bound"), [("f32", 2**24), ("f64", 2**53)])
def test_wide_floats_lose_the_first_integer_after_the_bound(name, bound):
    """f32 holds 2**24 but not 2**24 + 1; f64 likewise at 2**53."""
    type_ = DTYPES[name]
    assert bound == element_type(name).exact_integers
    assert (bound, bound) == (int(type_(bound)), int(type_(bound + 1)))


@pytest.mark.parametrize("name", ["i8", "i32"])
def test_integer_types_are_exact_up_to_their_maximum(name):
    """An integer type rounds nothing and holds all up to its largest value."""
    row = element_type(name)
    assert (np.iinfo(DTYPES[name]).max, 0.0, True) == (row.exact_integers, row.unit_roundoff, row.is_integer)


@pytest.mark.parametrize("name", FLOATS)
def test_limits_of_a_float_are_those_of_its_format(name):
    """The largest and the least value follow from the format's fields."""
    bits, least, largest = FORMATS[name]
    info = element_type(name).finfo()
    assert (largest, 2.0 ** (least - bits + 1)) == (float(info.max), float(info.smallest_subnormal))


def test_f8_is_short_for_the_format_that_is_meant():
    """`f8` is an alias, and names are spelled out once they are read."""
    assert element_type("f8E4M3FN") is element_type("f8")
    assert ElementTypes("f8E4M3FN", "f8E4M3FN", "f32") == ElementTypes("f8", "f8", "f32")


def test_an_unknown_type_is_refused_with_the_nearest():
    """A typing mistake names the type that was probably meant."""
    with pytest.raises(OperationError, match="unknown element type 'bf61'") as caught:
        element_type("bf61")
    assert caught.value.hint.startswith("did you mean 'bf16'? Available: f64, f32, f16, bf16, f8E4M3FN, i8")


@pytest.mark.parametrize("position", range(3))
def test_an_unknown_type_is_refused_in_each_place(position):
    """lhs, rhs and result are all looked up."""
    names = ["f32", "f32", "f32"]
    names[position] = "f33"
    with pytest.raises(OperationError, match="unknown element type 'f33'"):
        ElementTypes(*names)


def test_exactly_the_sums_that_fit_their_accumulator_are_accepted():
    """Of all triples of types, those of the table in these tests are accepted, and no other."""

    def is_accepted(triple):
        try:
            return bool(ElementTypes(*triple))
        except OperationError:
            return False

    triples = itertools.product(ELEMENT_TYPES, repeat=3)
    assert {(i, i, r) for i, r in TYPE_PAIRS} == set(filter(is_accepted, triples))


@pytest.mark.parametrize(
    ("triple", "message", "hint"),
    [
        (("f16", "f32", "f32"), "lhs and rhs must have the same element type, but got lhs=f16, rhs=f32", "use --rhs=f16"),
        (("i32", "i32", "i32"), "i32 is the result type of i8 inputs, not an input type", "use i8"),
        (("i8", "i8", "f32"), "i8 inputs need an i32 result, but got result=f32", "use --result=i32"),
        (("i8", "i8", "i8"), "i8 inputs need an i32 result, but got result=i8", "use --result=i32"),
        (("f16", "f16", "i32"), "f16 inputs need a floating-point result, but got result=i32", "use --result=f32"),
        (("f64", "f64", "i8"), "f64 inputs need a floating-point result, but got result=i8", "use --result=f64"),
        (("f16", "f16", "f64"), "f16 inputs are summed in f32, which is narrower than result=f64", "use --result=f32"),
    ],
)  # fmt: skip
def test_a_triple_that_no_kernel_computes_is_refused_with_the_rule(triple, message, hint):
    """The message has the rule and the values; the hint has the next step where there is one."""
    with pytest.raises(OperationError) as caught:
        ElementTypes(*triple)
    assert (message, hint) == (str(caught.value), caught.value.hint)


def test_element_types_tell_their_roles():
    """Input, result and accumulator are three questions with three answers."""
    types = ElementTypes("f16", "f16", "bf16")
    assert (types.input.name, types.output.name, types.accumulator.name) == ("f16", "bf16", "f32")


def test_a_tensor_knows_its_size_and_its_mlir_type():
    """Elements, bytes and MLIR text of 256 x 128 of f16."""
    tensor = Tensor("lhs", (256, 128), element_type("f16"))
    assert (tensor.elements, tensor.bytes, tensor.mlir) == (32768, 65536, "tensor<256x128xf16>")


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sums_may_be_held_in_the_inputs_own_type_of_16_bits(name):
    """Another computation; naming the usual accumulator is naming none."""
    narrow = ElementTypes(name, name, name, name)
    assert narrow.accumulator.name == name
    assert narrow != ElementTypes(name, name, name) == ElementTypes(name, name, name, "f32")


@pytest.mark.parametrize("types", [("f32", "f32", "f32", "f16"), ("f16", "f16", "f16", "bf16"), ("i8", "i8", "i32", "i8"),
                                   ("f16", "f16", "f32", "f16")])  # fmt: skip
def test_other_sums_are_refused(types):
    """Wider results than sums too."""
    with pytest.raises(OperationError, match="inputs are summed in"):
        ElementTypes(*types)
