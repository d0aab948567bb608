"""Ranges in options, and element types."""

from __future__ import annotations

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_operations import ACCUMULATORS, DTYPES, FLOATS, FORMATS, MIXED_PAIRS, TYPE_PAIRS, element_types

from dispatch_profiler.errors import OperationError, RangeError
from dispatch_profiler.operations import (
    ELEMENT_TYPES,
    ElementTypes,
    Tensor,
    element_type,
    natural_result,
    parse_range,
    parse_tuples,
    unreached_ends,
)

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("64", (64,)),
        ("3:6", (3, 4, 5, 6)),
        ("64:64", (64,)),
        ("64:1024:128", (64, 192, 320, 448, 576, 704, 832, 960)),
        ("64:192:128", (64, 192)),
        ("64:1024:128,1000", (64, 192, 320, 448, 576, 704, 832, 960, 1000)),
        ("8,2,8,1:3", (8, 2, 1, 3)),
        ("1, 2 ,3", (1, 2, 3)),
        ("007", (7,)),
        ("1:9:100", (1,)),
    ],
)
def test_what_a_range_names(text, values):
    """Ends are included where a step meets them, and each value comes once, where it first stood."""
    assert values == parse_range(text)


@st.composite
def parts(draw):
    """The text of one part of a list, and the values that it names, counted one by one."""
    start = draw(st.integers(1, 300))
    if draw(st.booleans()):
        return str(start), [start]
    end, step = draw(st.integers(start, start + 40)), draw(st.none() | st.integers(1, 50))
    values, value = [], start
    while value <= end:
        values.append(value)
        value += step or 1
    return f"{start}:{end}" + (f":{step}" if step else ""), values


def once(values):
    """`values` without repetitions."""
    return tuple(value for i, value in enumerate(values) if value not in values[:i])


@PROPERTY
@given(st.lists(parts(), min_size=1, max_size=4), st.sampled_from([",", ", ", " ,"]))
def test_a_list_names_what_its_parts_name(listed, comma):
    """In their order."""
    text = comma.join(text for text, _ in listed)
    assert once([value for _, values in listed for value in values]) == parse_range(text)


MALFORMED = ["64:1024:", "-5", "1e3", "", "a", "1:2:3:4", ":", "1:", ":2", "+5", "1.5", "1 2", "1_000", "٣", "1;2",
             "0x10", "1:-2", "1::2"]  # fmt: skip
HINT = "write a value (64), a range with its end included (64:1024 or 64:1024:128), or a comma list of these"


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_range_is_refused(text):
    """A missing number, a sign, a fraction, another script: the message has what was written."""
    with pytest.raises(RangeError) as caught:
        parse_range(text)
    assert (f"malformed range {text!r}", HINT) == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "values must be at least 1, but got '0'"),
        ("0:4", "values must be at least 1, but got '0:4'"),
        ("128:64", "a range must not end before it starts, but got '128:64'"),
        ("1:2:0", "a step must be at least 1, but got '1:2:0'"),
    ],
)
def test_a_range_of_numbers_that_do_not_fit_is_refused(text, message):
    """The message has the rule and what was written."""
    with pytest.raises(RangeError) as caught:
        parse_range(text)
    assert (message, HINT) == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,,2", "malformed range '' in '1,,2'"),
        ("1,", "malformed range '' in '1,'"),
        ("64,a", "malformed range 'a' in '64,a'"),
        ("4,0", "values must be at least 1, but got '0' in '4,0'"),
        ("1,9:3", "a range must not end before it starts, but got '9:3' in '1,9:3'"),
        ("1,2:3:0", "a step must be at least 1, but got '2:3:0' in '1,2:3:0'"),
    ],
)
def test_a_mistake_in_a_list_names_the_part_and_the_list(text, message):
    """The part that is wrong, and where it stands."""
    with pytest.raises(RangeError) as caught:
        parse_range(text)
    assert message == str(caught.value)


@PROPERTY
@given(st.text(alphabet="0123456789:,-x. ", max_size=12))
def test_any_text_is_a_range_or_a_range_error(text):
    """Never another exception, and never a value under the least."""
    for parse in (parse_range, parse_tuples):
        try:
            found = parse(text[:8])
        except RangeError as error:
            assert error.hint
        else:
            assert found


@pytest.mark.parametrize("parse", [parse_range, parse_tuples])
def test_a_number_of_five_thousand_digits_is_refused_as_a_range(parse):
    """Python itself refuses to read it, with an error of its own."""
    with pytest.raises(RangeError):
        parse("9" * 5000)


@pytest.mark.parametrize("parse", [parse_range, parse_tuples])
def test_the_least_value_is_the_callers(parse):
    """Padding may be 0."""
    assert parse("0:1", minimum=0) in ((0, 1), ((0,), (1,)))
    with pytest.raises(RangeError, match="values must be at least 4, but got '3'"):
        parse("3", minimum=4)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1", ((1,),)),
        ("2x1", ((2, 1),)),
        ("1x2x3", ((1, 2, 3),)),
        ("1:2", ((1,), (2,))),
        ("1:2,2x1", ((1,), (2,), (2, 1))),
        ("2x1, 1 ,2x1,1x1", ((2, 1), (1,), (1, 1))),
        ("1:2x3:4", ((1, 3), (1, 4), (2, 3), (2, 4))),
    ],
)
def test_what_tuples_are_named(text, found):
    """A range gives single values, `2x1` a pair; each comes once, where it first stood."""
    assert found == parse_tuples(text)


@PROPERTY
@given(st.lists(st.tuples(parts(), st.none() | parts()), min_size=1, max_size=3))
def test_a_list_of_pairs_names_what_its_parts_name(listed):
    """Against pairs that are counted one by one."""
    text = ",".join(first[0] + (f"x{second[0]}" if second else "") for first, second in listed)
    expected = [
        pair
        for (_, heights), second in listed
        for pair in ([(h, w) for h in heights for w in second[1]] if second else [(h,) for h in heights])
    ]
    assert once(expected) == parse_tuples(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "malformed range ''"),
        ("x", "malformed range '' in 'x'"),
        ("2x", "malformed range '' in '2x'"),
        ("x2", "malformed range '' in 'x2'"),
        ("2x1x1x1", "malformed range '1x1' in '2x1x1x1'"),
        ("2X1", "malformed range '2X1'"),
        ("1,2xa", "malformed range 'a' in '1,2xa'"),
        ("0x1", "values must be at least 1, but got '0' in '0x1'"),
        ("1,,2x2", "malformed range '' in '1,,2x2'"),
    ],
)
def test_malformed_pairs_are_refused(text, message):
    """The number that is wrong, and where it stands."""
    with pytest.raises(RangeError) as caught:
        parse_tuples(text)
    assert message == str(caught.value)


def test_the_hint_of_a_malformed_pair_shows_a_pair():
    """Who mistypes 2x1 should read how it is written."""
    with pytest.raises(RangeError) as caught:
        parse_tuples("2*1")
    assert "2x1" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64:1024:128,8", (("64:1024:128", 960),)),
        ("64:960:128", ()),
        ("64:1024", ()),
        ("5, 1:4:2 ,2:9:4", (("1:4:2", 3), ("2:9:4", 6))),
        ("1:4:2x3,2x5:9:3", (("1:4:2", 3), ("5:9:3", 8))),
    ],
)
def test_an_end_that_no_step_reaches_is_found(text, found):
    """With the last value that there is."""
    assert unreached_ends(text) == found
    assert all(last == parse_range(part)[-1] for part, last in found)


def test_tuples_of_too_many_values_are_refused():
    """Three ranges of a thousand values would be a thousand million."""
    with pytest.raises(RangeError, match="'1:1000x1:1000x1:1000' has more than 1000000 values"):
        parse_tuples("1:1000x1:1000x1:1000")


def test_the_table_holds_eight_types():
    """These types, and no others, can stand in an operation."""
    assert {*FLOATS, "i8", "i32"} == set(ELEMENT_TYPES)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f64", 64),
        ("f32", 32),
        ("f16", 16),
        ("bf16", 16),
        ("f8E4M3FN", 8),
        ("f8E5M2", 8),
        ("i8", 8),
        ("i32", 32),
    ],
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
    assert caught.value.hint.startswith(
        "did you mean 'bf16'? Available: f64, f32, f16, bf16, f8E4M3FN, f8E5M2, i8"
    )


@pytest.mark.parametrize("name", ["i4", "f4E2M1FN", "u4"])
def test_types_that_share_bytes_are_refused_in_a_sentence(name):
    """They are no typing mistakes."""
    with pytest.raises(OperationError, match=f"^{name}: types of less than 8 bits are not supported$"):
        ElementTypes("i8", name, "i32")


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
    expected = [astuple(element_types(pair))[:3] for pair in (*TYPE_PAIRS, *MIXED_PAIRS)]
    assert sorted(expected) == sorted(filter(is_accepted, triples))


@pytest.mark.parametrize(
    ("triple", "message", "hint"),
    [
        (("i8", "i32", "i32"), "i32 is the result type of i8 inputs, not an input type", "use i8"),
        (("f16", "i8", "i32"), "f16 and i8 inputs need a floating-point result, but got result=i32", "use --result=f32"),
        (("f16", "f32", "f64"), "f16 and f32 inputs are summed in f32, which is narrower than result=f64", "use --result=f32"),
        (("i32", "i32", "i32"), "i32 is the result type of i8 inputs, not an input type", "use i8"),
        (("i8", "i8", "i8"), "i8 inputs need an i32 or floating-point result, but got result=i8", "use --result=i32"),
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


def test_different_inputs_have_a_type_that_no_others_have():
    """Tables of kernels and rules for certain types do not name it. It is as wide as the wider one, in both orders."""
    for lhs, rhs, name in (("f16", "f8", "f16xf8E4M3FN"), ("i8", "f16", "i8xf16")):
        joint = ElementTypes(lhs, rhs, "f32").input
        assert (joint.name, joint.bits, joint.is_integer, joint.accumulator_name) == (name, 16, False, "f32")
        assert joint.name not in ELEMENT_TYPES
    assert ElementTypes("f32", "f64", "f64").accumulator.name == "f64"


@pytest.mark.parametrize(
    ("inputs", "result"),
    [("f16 f16", "f16"), ("f8 f8", "f32"), ("i8 i8", "i32"), ("f16 f32", "f32"), ("f64 f32", "f64"), ("bf16 f8", "bf16"),
     ("i8 f16", "f16"), ("f16 bf16", "f32"), ("f8 bf8", "f32"), ("i8 f8", "f32")],
)  # fmt: skip
def test_the_natural_result_is_the_wider_type_unless_that_is_unclear_or_has_8_bits(inputs, result):
    """Of both orders."""
    lhs, rhs = inputs.split()
    assert natural_result(lhs, rhs) == natural_result(rhs, lhs) == result
    assert ElementTypes(lhs, rhs, result)


@pytest.mark.parametrize("wide", [*FLOATS, "i8"])
@pytest.mark.parametrize("narrow", [*FLOATS[2:], "i8"])
def test_a_type_holds_another_whose_numbers_survive_a_conversion(wide, narrow):
    """Every number of the types of up to 16 bits is tried."""
    count, bits = (2**16, np.uint16) if element_type(narrow).bits == 16 else (2**8, np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.arange(count, dtype=bits).view(DTYPES[narrow]).astype(np.float64)
        numbers = numbers[np.isfinite(numbers)]
        survives = np.array_equal(numbers.astype(DTYPES[wide]).astype(np.float64), numbers)
    assert element_type(wide).holds(element_type(narrow)) == survives


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
                                   ("f16", "f16", "f32", "f16"), ("f16", "f8", "f16", "f16")])  # fmt: skip
def test_other_sums_are_refused(types):
    """Wider results than sums too."""
    with pytest.raises(OperationError, match="inputs are summed in"):
        ElementTypes(*types)
