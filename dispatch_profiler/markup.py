"""Markdown tables and JUnit XML out of plain text, whatever that holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

# -- Markdown --------------------------------------------------------------------------------------

#: What begins something in running text; an underscore within a word does not.
_SPECIAL = re.compile(r"[`*\[\]~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_text(text: str) -> str:
    """`text` as a cell or a line shows it: it ends neither, and is no HTML, link or emphasis."""
    # A backslash before an escaped | would undo it, so it becomes a character by its number.
    whole = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "&#92;")
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", whole)


def markdown_code(text: str) -> str:
    """`text` as code where code can hold it."""
    if not text or re.search(r"[`\\\n]", text):
        return markdown_text(text)
    return f"`{text}`".replace("|", "\\|")


def markdown_table(head: Sequence[str], alignment: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; `alignment` has `l` or `r` for each column. Cells are Markdown already."""
    rule = ("---:" if side == "r" else "---" for side in alignment)
    return [
        _row(head), f"|{'|'.join(rule)}|", *(_row(row) for row in rows)
    ]  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -- JUnit -----------------------------------------------------------------------------------------

#: What XML 1.0 cannot hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """A test case: passed, unless `failure` or `skipped` says why not.

    `failure` is its type and its message. `output` is what one reads below it.
    """

    suite: str
    name: str
    failure: tuple[str, str] | None = None
    skipped: str | None = None
    output: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def junit_xml(name: str, cases: Sequence[Case], properties: Iterable[tuple[str, str]]) -> str:
    """One suite with all cases, as CI systems read it."""
    suites = ElementTree.Element("testsuites")
    failures = sum(case.failure is not None for case in cases)
    skipped = sum(case.skipped is not None for case in cases)
    counts = {"tests": len(cases), "failures": failures, "errors": 0, "skipped": skipped}
    suite = _element(suites, "testsuite", {"name": name, **{k: str(count) for k, count in counts.items()}})
    _properties(suite, properties)
    for each in cases:
        case = _element(suite, "testcase", {"classname": each.suite, "name": each.name})
        _properties(case, each.properties.items())
        if each.failure is not None:
            kind, message = each.failure
            _element(case, "failure", {"type": kind, "message": message})
        elif each.skipped is not None:
            _element(case, "skipped", {"message": each.skipped})
        if each.output:
            _element(case, "system-out", {}).text = _for_xml(each.output)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def _properties(parent: ElementTree.Element, properties: Iterable[tuple[str, str]]) -> None:
    found = [(name, value) for name, value in properties if value]
    if found:
        inside = _element(parent, "properties", {})
        for name, value in found:
            _element(inside, "property", {"name": name, "value": value})


def _element(parent: ElementTree.Element, tag: str, attributes: Mapping[str, str]) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {key: _for_xml(value) for key, value in attributes.items()})


def _for_xml(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
