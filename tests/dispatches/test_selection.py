"""Which dispatches a pattern and a kind select."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.dispatches import Selection
from dispatch_profiler.errors import OperationError, SelectionError
from dispatch_profiler.operations import KINDS

NAMES = {
    "matmul_64x64x64_f16t_f16t_f16t_tile_config_default": "matmul",
    "matmul_64x64x64_f16t_f16t_f16t_tile_config_64x128_8x32x4": "matmul",
    "matmul_128x64x64_f32t_f32t_f32t_tile_config_default": "matmul",
    "batch_matmul_4x64x64x64_f32t_f32t_f32t_tile_config_default": "batch_matmul",
    "conv2d_1x8x8x4_f32nhwc_s1x1_p0x0_d1x1_g1_tile_config_default": "conv2d",
}


def chosen(patterns: str, kinds: str = "") -> list[str]:
    return Selection.parse(patterns, kinds).choose(NAMES, NAMES.__getitem__, str)


def numbers(patterns: str, kinds: str = "") -> list[int]:
    """Positions in NAMES of what is selected."""
    return [list(NAMES).index(name) for name in chosen(patterns, kinds)]


# -- patterns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("*", [0, 1, 2, 3, 4]),
        (".*", [0, 1, 2, 3, 4]),
        ("matmul_*", [0, 1, 2]),
        ("matmul_.*", [0, 1, 2]),
        ("*matmul_*", [0, 1, 2, 3]),
        ("*_tile_config_64x128_*", [1]),
        ("matmul_64x64x64_f16t_f16t_f16t_tile_config_default", [0]),
        ("matmul_???x*", [2]),
        ("matmul_[0-9]{3}x.*", [2]),
        ("matmul_[0-9]{1,2}x.*", [0, 1]),
        ("(batch_)?matmul_.*_tile_config_default", [0, 2, 3]),
        ("matmul_(64|128)x.*default", [0, 2]),
        ("matmul_[!6]*", [2]),
        ("matmul_[^6].*", [2]),
    ],
)
def test_a_pattern_is_a_glob_or_a_regular_expression(patterns, selected):
    """Both are tried; the order is that of the dispatches."""
    assert numbers(patterns) == selected


@pytest.mark.parametrize("pattern", ["matmul", "matmul_64x64x64", "tile_config_default", "atmul_.*"])
def test_a_pattern_must_match_the_whole_name(pattern):
    """Otherwise `matmul_8x8x8_*` would select batch_matmul too."""
    with pytest.raises(SelectionError, match=f"no dispatch matches '{pattern}'"):
        chosen(pattern)


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("conv2d_*,batch_*", [3, 4]),
        ("conv2d_* , batch_*", [3, 4]),
        ("matmul_[0-9]{3,4}x.*,conv2d.*", [2, 4]),
        ("matmul_(?:64|128)x[0-9]{2,2}x.*", [0, 1, 2]),
        ("matmul_[1,2]*,conv2d_[1,2]*", [2, 4]),
        ("matmul_*,matmul_*", [0, 1, 2]),
    ],
)
def test_commas_separate_patterns_but_not_inside_brackets(patterns, selected):
    """`{3,4}` and `[1,2]` belong to one pattern; what two patterns select comes once."""
    assert numbers(patterns) == selected


@pytest.mark.parametrize("patterns", [",", "a,", ",a", "a,,b", " "])
def test_an_empty_pattern_is_refused(patterns):
    """It would select nothing; most likely a comma is too many."""
    with pytest.raises(SelectionError, match="empty pattern in") as caught:
        Selection.parse(patterns, "")
    assert caught.value.hint == "separate patterns with one comma"


@pytest.mark.parametrize("pattern", ["(abc", "a{2,1}", "abc\\"])
def test_what_is_neither_glob_nor_regular_expression_is_refused(pattern):
    """With what is wrong with it."""
    with pytest.raises(SelectionError, match="neither a glob nor a regular expression: "):
        chosen(pattern)


def test_a_repetition_that_no_regular_expression_has_is_refused():
    """Python's own error for it is no `re.error`."""
    with pytest.raises(SelectionError, match="neither a glob nor a regular expression"):
        chosen("a{99999999999}")


def test_a_glob_that_is_no_regular_expression_is_a_glob():
    """`*_default` would repeat nothing."""
    assert numbers("*_64x128_*") == [1]


def test_a_glob_is_not_warned_about():
    """What Python says of `[[` as a regular expression is of no interest to who wrote a glob."""
    with pytest.raises(SelectionError, match="no dispatch matches"):
        chosen("[[a]*")


def test_no_match_names_the_nearest():
    """And says how patterns match."""
    with pytest.raises(SelectionError, match=r"no dispatch matches 'matmul_128x64x65_\*default'") as caught:
        chosen("matmul_128x64x65_*default")
    assert caught.value.hint == (
        "did you mean 'matmul_128x64x64_f32t_f32t_f32t_tile_config_default'? "
        "A pattern must match the whole name"
    )


def test_each_pattern_must_match_something():
    """A typo beside a good pattern is not passed over."""
    with pytest.raises(SelectionError, match="no dispatch matches 'typo'"):
        chosen("matmul_*,typo")


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "selected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("all", [0, 1, 2, 3, 4]),
        ("matmul", [0, 1, 2]),
        ("conv2d,batch_matmul", [3, 4]),
        ("conv2d, matmul", [0, 1, 2, 4]),
        ("matmul,all", [0, 1, 2, 3, 4]),
    ],
)
def test_kinds_select_by_the_operation(kinds, selected):
    """No kind and `all` are every kind; the order is that of the dispatches."""
    assert numbers("", kinds) == selected


def test_an_unknown_kind_is_refused_with_the_nearest():
    """And with every kind that there is."""
    with pytest.raises(OperationError, match="unknown operation kind 'matmull'") as caught:
        Selection.parse("", "matmull")
    assert caught.value.hint == "did you mean 'matmul'? Available: " + ", ".join(KINDS)


@pytest.mark.parametrize("kinds", ["conv", "all,conv", "matmul,", ","])
def test_every_kind_must_be_known(kinds):
    """`all` beside it does not hide a typo."""
    with pytest.raises(OperationError, match="unknown operation kind"):
        Selection.parse("", kinds)


def test_pattern_and_kind_must_both_hold():
    """Each narrows the other."""
    assert numbers("*default", "batch_matmul") == [3]
    with pytest.raises(SelectionError, match=r"no dispatch matches 'conv2d_\*'"):
        chosen("conv2d_*", "matmul")


def test_a_kind_that_is_not_there_is_said():
    """Known, but not in this tree."""
    selection = Selection.parse("", "conv2d,batch_matmul")
    with pytest.raises(SelectionError, match="no dispatch of conv2d, batch_matmul"):
        selection.choose(["matmul_1"], lambda _: "matmul", str)


def test_nothing_to_choose_from_is_said():
    """An empty tree."""
    with pytest.raises(SelectionError, match="no dispatch of any kind"):
        Selection().choose([], str, str)


# -- agreement -------------------------------------------------------------------------------------


@settings(derandomize=True, database=None, max_examples=200)
@given(st.lists(st.sampled_from(["*", "m*", ".*default", "conv2d_.*", "*[0-9]", "batch_*"]), unique=True))
def test_matches_says_what_choose_takes(patterns):
    """Two ways to ask the same question."""
    selection = Selection(tuple(patterns), ("matmul", "conv2d"))
    expected = [name for name, kind in NAMES.items() if selection.matches(kind, name)]
    try:
        assert selection.choose(NAMES, NAMES.__getitem__, str) == expected
    except SelectionError:
        alone = (Selection((pattern,), ("matmul", "conv2d")) for pattern in patterns)
        assert any(not any(one.matches(k, n) for n, k in NAMES.items()) for one in alone)
