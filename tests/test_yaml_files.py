"""YAML from outside: what is read, and that nothing hangs, grows or shows a traceback."""

from __future__ import annotations

import math
import os
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.yaml_files import MOST_BYTES, load_yaml, parse_yaml

INTEGERS = st.integers(-(2**63), 2**63 - 1)
#: PyYAML writes the string 1e5 without quotes, which is a number in JSON.
TEXTS = st.text(max_size=20).filter(lambda text: not re.fullmatch(r"[-+.0-9]+[eE][-+0-9]+", text))
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXTS
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


@given(DATA)
def test_plain_data_is_read_as_pyyaml_reads_it(data):
    text = yaml.safe_dump(data)
    assert parse_yaml(text.encode(), "f") == yaml.safe_load(text)


def test_what_is_no_number_of_python_is_read_as_yaml_says():
    assert math.isnan(parse_yaml(b"[.nan, 0x10, 1_000]", "f")[0])
    assert parse_yaml(b"[.inf, 0x10, 1_000]", "f") == [math.inf, 16, 1000]


REJECTED = {
    "a: &x [1]\nb: *x": "aliases such as *x are not supported: write the value out (line 2, column 4)",
    "a: &x {b: 1}\nc: {<<: *x}": "aliases such as *x are not supported: write the value out (line 2, column 9)",
    "[" * 21: "more than 20 levels of nesting (line 1, column 21)",
    "- " * 500_000: "more than 20 levels of nesting (line 1, column 41)",
    "{a: " * 250_000: "more than 20 levels of nesting (line 1, column 78)",
    f"a: {2**63}": "an integer has more than 64 bits (line 1, column 4)",
    "a: 0x" + "f" * 9000: "an integer has more than 64 bits (line 1, column 4)",
    "a: 1" + ":1" * 4000: "an integer has more than 64 bits (line 1, column 4)",
    "a: 1" + "0" * 20_000: "a value has more than 10000 characters (line 1, column 4)",
    "a: 0b_": "'0b_' is not a valid int (line 1, column 4)",
    "a: !!bool maybe": "'maybe' is not a valid bool (line 1, column 4)",
    'a: !!int ""': "'' is not a valid int (line 1, column 4)",
    "a: 2026-99-99": "timestamp values are not supported (line 1, column 4)",
    "a: !!python/object:os.system x": "os.system values are not supported (line 1, column 4)",
    "a: !!binary aGk=": "binary values are not supported (line 1, column 4)",
}
MALFORMED = {
    "{? [a] : b}": "found unhashable key (line 1, column 4)",
    "a: b: c": "mapping values are not allowed here (line 1, column 5)",
    "--- a\n--- b": "but found another document (line 2, column 1)",
    "a: \x07": 'unacceptable character #x0007: special characters are not allowed in "<unicode string>", position 3',
}


@pytest.mark.parametrize(("text", "reason"), REJECTED.items(), ids=[text[:20] for text in REJECTED])
def test_what_is_not_plain_bounded_data_is_rejected_with_its_place(text, reason):
    with pytest.raises(UsageError) as caught:
        parse_yaml(text.encode(), "mine.yaml")
    assert str(caught.value) == f"mine.yaml: {reason}"


@pytest.mark.parametrize(("text", "reason"), MALFORMED.items(), ids=[text[:20] for text in MALFORMED])
def test_what_is_not_yaml_is_rejected_with_its_place(text, reason):
    with pytest.raises(UsageError) as caught:
        parse_yaml(text.encode(), "mine.yaml")
    assert str(caught.value) == f"mine.yaml is not valid YAML: {reason}"


def test_a_file_has_a_limited_number_of_values():
    """The limit itself is allowed."""
    assert parse_yaml(b"[1, 2, 3, 4]", "f", most_values=5) == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="more than 5 values"):
        parse_yaml(b"[1, 2, 3, 4, 5]", "f", most_values=5)


def test_text_that_is_not_utf_8_is_rejected_with_its_byte():
    with pytest.raises(UsageError, match=r"^f is not UTF-8 text: byte 3 is 0xff$"):
        parse_yaml(b"a: \xff", "f")


@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from("[]{}:,-?&*!|>%@'\"#\n \t0a.<="), max_size=60).map(str.encode)
)
def test_any_bytes_are_data_or_one_sentence(data):
    try:
        parse_yaml(data, "mine.yaml")
    except UsageError as error:
        assert re.match(r"mine\.yaml( is not \S.*)?: |mine\.yaml is not UTF-8", str(error))
        assert "\n" not in str(error)


def test_a_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("[1, {a: b}]")
    assert load_yaml(path) == [1, {"a": "b"}]


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_and_what_is_too_large_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (MOST_BYTES + 1))
    for name, reason in (
        ("pipe", "a named pipe"),
        (".", "a directory"),
        ("large", "larger than 1048576 bytes"),
    ):
        with pytest.raises(UsageError, match=f"cannot read .*: it is {reason}"):
            load_yaml(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-05", 1e-05), ("-2E+3", -2e3), ("1e5", 1e5), ("1.5e3", 1500.0)]
)
def test_numbers_are_those_of_json(text: str, value: float):
    """Python writes 0.00001 as 1e-05, which YAML 1.1 reads as a string."""
    found = parse_yaml(f"x: {text}".encode(), "x.yaml")["x"]
    assert (type(found), found) == (float, value)


@pytest.mark.parametrize("text", ["1e", "e5", "1e-5x", "0x1e5z", "1 e5"])
def test_what_only_resembles_such_a_number_is_text(text: str):
    assert parse_yaml(f"x: {text}".encode(), "x.yaml")["x"] == text
