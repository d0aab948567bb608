"""Parses the lines of a hipBLASLt log: YAML flow maps of scalars, `- {function: matmul, M: 768, ...}`.

PyYAML takes 300 microseconds and more for a line of such a log. This parser accepts only what a log contains:
one map on one line, plain and quoted scalars, nothing nested.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dispatch_profiler.errors import WorkloadError, short_repr

#: The longest line: a line of mask 128 with its kernel's name has about 1,500 characters.
MOST_CHARACTERS = 10_000
_KEY = r"[A-Za-z_][\w.+-]{0,99}"
#: A line as hipBLASLt writes it.
_PAIR = r"[A-Za-z_]\w*: [\w.+-]+"
_USUAL = re.compile(rf"- \{{((?:{_PAIR}, )*{_PAIR})\}} *", re.ASCII)
#: A plain scalar: it starts with a character without a meaning, and extends to a character that ends it.
_INNER = r"(?:[!\"$-+\--9;->@-Z\\^-z|~]|:(?![\s,\[\]{}]|$))"
_PLAIN = rf"(?:[\w.+/()<=;$~^]|-(?={_INNER})){_INNER}*(?: +{_INNER}+)*"
_FIELD = re.compile(
    rf" *(?P<key>{_KEY}) *:(?:(?: +(?P<plain>{_PLAIN})| +'(?P<single>(?:[ !-&(-~]|'')*)'"
    r'| +"(?P<double>[ !#-\[\]-~]*)")?) *(?P<end>[,}])',
    re.ASCII,
)
_OPENING = re.compile(r"- +\{")
_ENDING = re.compile(r" *(?: #.*)?")
_NUMBER = re.compile("[0-9]+")
#: Logs have fewer forms of lines, unless the lines name kernels: to try more patterns would take longer than to parse.
_MOST_PATTERNS = 16


class _Pattern(NamedTuple):
    """Matches lines that differ from a parsed one in the values of `numbers` only."""

    expression: re.Pattern[str]
    fields: dict[str, str]
    numbers: tuple[str, ...]


class FlowMaps:
    """Parses the lines of one log, most of which differ from an earlier line in whole numbers only.

    The first line of each form is parsed by `parse_flow_map` and becomes a pattern for the lines that follow, which
    takes a third of the time.
    """

    def __init__(self) -> None:
        #: The pattern of the last line is the first.
        self._patterns: list[_Pattern] = []

    def parse(self, line: str) -> dict[str, str]:
        """The fields of one line. Same result and errors as `parse_flow_map`."""
        if len(line) <= MOST_CHARACTERS:
            for at, pattern in enumerate(self._patterns):
                if match := pattern.expression.fullmatch(line):
                    if at:
                        self._patterns.insert(0, self._patterns.pop(at))
                    return {**pattern.fields, **dict(zip(pattern.numbers, match.groups(), strict=True))}
        fields = parse_flow_map(line)
        if len(self._patterns) < _MOST_PATTERNS and _USUAL.fullmatch(line):
            self._patterns.insert(0, _pattern(fields))
        return fields


def parse_flow_map(line: str) -> dict[str, str]:
    """The fields of one line, with every value as text: `- {M: 768, bias_vector: true}` -> {"M": "768", ...}.

    A field without a value is "". Raises WorkloadError for anything but one flat map.
    """
    if len(line) > MOST_CHARACTERS:
        raise WorkloadError(f"the line has more than {MOST_CHARACTERS} characters")
    usual = _USUAL.fullmatch(line)
    if usual is None:
        return _parse_slowly(line)
    texts = usual[1].replace(": ", ", ").split(", ")
    names = texts[::2]
    fields = dict(zip(names, texts[1::2], strict=True))
    if len(fields) != len(names):
        raise _repeated(next(name for name in names if names.count(name) > 1))
    return fields


def _pattern(fields: dict[str, str]) -> _Pattern:
    """The pattern of a line in hipBLASLt's form, in which other numbers give the same names and other values."""
    numbers = tuple(name for name, value in fields.items() if _NUMBER.fullmatch(value))
    values = {
        **{name: re.escape(value) for name, value in fields.items()},
        **dict.fromkeys(numbers, "([0-9]+)"),
    }
    pairs = ", ".join(f"{name}: {value}" for name, value in values.items())
    return _Pattern(re.compile(rf"- \{{{pairs}\}} *"), dict(fields), numbers)


def _parse_slowly(line: str) -> dict[str, str]:
    """Like `parse_flow_map`, for lines with quotes, empty values or other spacing; finds what is damaged."""
    opening = _OPENING.match(line)
    if opening is None:
        raise WorkloadError("expected a line such as `- {function: matmul, M: 768, ...}`")
    fields: dict[str, str] = {}
    at, end = opening.end(), ","
    while end == ",":
        field = _FIELD.match(line, at)
        if field is None:
            raise WorkloadError(_problem(line[at:].lstrip(" "), fields))
        if field["key"] in fields:
            raise _repeated(field["key"])
        quoted = field["double"] if field["single"] is None else field["single"].replace("''", "'")
        fields[field["key"]] = quoted if quoted is not None else field["plain"] or ""
        at, end = field.end(), field["end"]
    if not _ENDING.fullmatch(line, at):
        raise WorkloadError(f"unexpected text after the closing brace: {short_repr(line[at:].strip())}")
    return fields


def _problem(rest: str, fields: dict[str, str]) -> str:
    """What is wrong with the rest of a line, which does not start with a field."""
    after = f" after {next(reversed(fields))}" if fields else ""
    if not rest.strip():
        return f"the line ends{after}, without a closing brace"
    if rest.startswith((",", "}")):
        return f"an empty field{after}"
    if "}" not in rest:
        return f"the line ends within a field{after}: {short_repr(rest.strip()[:40])}"
    return f"expected `name: value`{after}, but got {short_repr(rest.strip()[:40])}"


def _repeated(name: str) -> WorkloadError:
    return WorkloadError(f"{name} is given twice")
