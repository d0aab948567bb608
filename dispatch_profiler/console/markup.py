"""Markdown tables, CSV and JUnit XML from arbitrary text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

# -- Markdown --------------------------------------------------------------------------------------

#: Characters with a meaning in running text; underscores within words have none.
_SPECIAL = re.compile(r"[`*\[\]~|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_text(text: str) -> str:
    """`text` escaped for a cell or a line: without line breaks, HTML, links or emphasis."""
    # A backslash before an escaped | would undo the escape, so it becomes a character reference.
    whole = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "&#92;")
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", whole)


def markdown_code(text: str) -> str:
    """`text` as inline code if possible, else escaped."""
    if not text or re.search(r"[`\\\n]", text):
        return markdown_text(text)
    return f"`{text}`".replace("|", "\\|")


def markdown_table(head: Sequence[str], alignment: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. `alignment` has `l` or `r` for each column. Cells are already Markdown."""
    rule = ("---:" if side == "r" else "---" for side in alignment)
    return [
        _row(head), f"|{'|'.join(rule)}|", *(_row(row) for row in rows)
    ]  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -- CSV -------------------------------------------------------------------------------------------


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """CSV with a header; a column that a row lacks is empty."""
    every = (dict(zip(columns, columns, strict=True)), *rows)
    return "".join(f"{_csv_line(columns, row)}\n" for row in every)


def _csv_line(columns: Sequence[str], row: Mapping[str, object]) -> str:
    text = io.StringIO()
    # A writer whose lines end with a line feed alone does not quote a carriage return.
    csv.DictWriter(text, columns, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n")


# -- JUnit -----------------------------------------------------------------------------------------

#: Characters that XML 1.0 cannot represent, even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """A test case, which passed unless `failure` or `skipped` is set.

    `failure` has its type and message, `skipped` the reason. `output` is shown below the case.
    """

    suite: str
    name: str
    failure: tuple[str, str] | None = None
    skipped: str | None = None
    output: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def junit_xml(name: str, cases: Sequence[Case], properties: Iterable[tuple[str, str]]) -> str:
    """The XML of one suite with all cases, as CI systems expect it."""
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
    known = [(name, value) for name, value in properties if value]
    if known:
        inside = _element(parent, "properties", {})
        for name, value in known:
            _element(inside, "property", {"name": name, "value": value})


def _element(parent: ElementTree.Element, tag: str, attributes: Mapping[str, str]) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {key: _for_xml(value) for key, value in attributes.items()})


def _for_xml(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
