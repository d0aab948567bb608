"""The line parser of hipBLASLt logs, against PyYAML, which reads every scalar as text with its BaseLoader."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import WorkloadError
from dispatch_profiler.workloads import flow_lines
from dispatch_profiler.workloads.flow_lines import MOST_CHARACTERS, FlowMaps, parse_flow_map

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


@settings(max_examples=150, derandomize=True)
@given(lines(WORDS, usual=True))
def test_a_line_as_hipblaslt_writes_it_is_read_as_pyyaml_reads_it(line: str):
    assert [parse_flow_map(line)] == by_yaml(line)


@settings(max_examples=150, derandomize=True)
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


@settings(max_examples=150, derandomize=True)
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
    monkeypatch.setattr(flow_lines, "parse_flow_map", None)
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
@settings(max_examples=300, derandomize=True)
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
