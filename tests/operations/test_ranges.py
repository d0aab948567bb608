"""Numeric arguments: values, ranges with their ends included, lists of these, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import RangeError
from dispatch_profiler.operations import parse_range, parse_tuples, unreached_ends

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
