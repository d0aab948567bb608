"""A run as Markdown, JUnit and JSON, read by parsers that know nothing of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sample_records import invented, written

from dispatch_profiler.console.markup import Case, junit_xml, markdown_code, markdown_table, markdown_text
from dispatch_profiler.profiler.records.record import StoredRecord, Verdict
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.report.cli import main as report_main
from dispatch_profiler.profiler.report.run_report import junit, markdown

junitparser = pytest.importorskip("junitparser", reason="reads JUnit as CI systems do")

RECORDS = invented(75, samples=6)
HOSTILE = "a | b \\| `c` *d* _e_ [f](g) <img src=x> &amp; ~~h~~\n# i\t</system-out>]]> \x00"
FAULTS = {"*_default": {"time_ms": 0.25}, "*_ukernels": {"fault": "nan"}, "*": {"time_ms": 0.3}}


def hostile(record: StoredRecord) -> StoredRecord:
    names = {"operation": HOSTILE, "configuration": HOSTILE, "provider": HOSTILE}
    return replace(record, verdict=Verdict.FAILED, measurement=None, reason=HOSTILE, **names)


# -- Markdown --------------------------------------------------------------------------------------


def tables(text: str) -> list[list[list[str]]]:
    """The text of each cell of each table, as a reader of GitHub's Markdown sees it."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level == 4:
            children = token.children or []
            kinds = {each.type for each in children} - {"strong_open", "strong_close"}
            assert kinds <= {"text", "text_special", "code_inline"}, kinds
            found[-1][-1].append("".join(each.content for each in children))
    return found


def seen(text: str) -> str:
    return " ".join(text.split())


def test_there_is_a_table_for_each_operation_the_fastest_first():
    """Every record once; what has no speed comes last, with its reason."""
    found = tables(markdown(RECORDS))
    assert len(found) == 3
    rows = [row for _, *table in found for row in table]
    assert len(rows) == len(RECORDS)
    for head, *table in found:
        assert head[0] == "Runtime (ms)" and {len(row) for row in table} == {len(head)}
        times = [float(row[0]) for row in table if row[0]]
        assert times == sorted(times)
        assert [bool(row[0]) for row in table] == sorted((bool(row[0]) for row in table), reverse=True)
    reasons = sorted(seen(r.reason) for r in RECORDS if r.reason and not r.measurement)
    assert sorted(row[7] for row in rows if row[7] and not row[0]) == reasons


def test_it_says_where_it_was_measured():
    text = markdown([replace(record, tags={"run": "3"}) for record in RECORDS])
    assert "Invented CPU, 2 cores, 8.0 GiB, Linux 6.1.0 x86_64; device local-task" in text
    assert "run: 3" in text and text.startswith(f"- {len(RECORDS)} dispatches: ")


def test_names_and_reasons_survive_markdown():
    """Whatever they hold: as text, in their cells."""
    ((_, row),) = tables(markdown([hostile(RECORDS[0])]))
    assert row[7] == seen(HOSTILE).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert row[6].startswith(row[7].split("\N{REPLACEMENT CHARACTER}")[0])


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab |\\`*_[]()<>&~!#-:/\n"), max_size=12))
def test_any_text_survives_a_cell(text):
    """And as code, if code can hold it."""
    lines = markdown_table(("x", "y"), "lr", [(markdown_text(text), "z"), (markdown_code(text), "z")])
    (found,) = tables("\n".join(lines))
    assert [row[1] for row in found] == ["y", "z", "z"]
    assert found[1][0] == seen(text)
    assert seen(found[2][0]) == seen(text)


# -- JUnit -----------------------------------------------------------------------------------------

#: What may stand in what, in which order, and the attributes that must be there: as Jenkins, GitLab and
#: the description of github.com/testmoapp/junitxml have it.
CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase"],
    "testcase": ["properties", "failure", "skipped", "system-out"],
    "properties": ["property"],
}
REQUIRED = {
    "testsuite": {"name", "tests", "failures", "errors", "skipped"},
    "testcase": {"classname", "name"},
    "property": {"name", "value"},
    "failure": {"type", "message"},
    "skipped": {"message"},
}


def broken_rules(element: ElementTree.Element) -> list[str]:
    """Where `element` and all below it are not as the rules above say."""
    order = CHILDREN.get(element.tag, [])
    tags = [child.tag for child in element]
    found = [f"{tag} in {element.tag}" for tag in tags if tag not in order]
    if not found and tags != sorted(tags, key=order.index):
        found.append(f"order in {element.tag}: {tags}")
    missing = REQUIRED.get(element.tag, set()) - set(element.attrib)
    found += [f"{element.tag} without {name}" for name in sorted(missing)]
    return found + [text for child in element for text in broken_rules(child)]


def cases(text: str) -> list:
    """As an independent parser reads them; the counts of the suite are those of its cases."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites" and broken_rules(root) == []
    (suite,) = junitparser.JUnitXml.fromstring(text.encode())
    found = list(suite)
    kinds = [type(each.result[0]).__name__ if each.result else "" for each in found]
    assert (suite.tests, suite.failures, suite.skipped) == (
        len(found), kinds.count("Failure"), kinds.count("Skipped"),
    )  # fmt: skip
    return found


def test_the_rules_can_be_broken():
    """A checker that never complains checks nothing."""
    text = '<testsuite name="a"><testcase name="b"><skipped message="c"/><properties/></testcase></testsuite>'
    assert broken_rules(ElementTree.fromstring(text)) == [
        "testsuite without errors", "testsuite without failures", "testsuite without skipped",
        "testsuite without tests", "order in testcase: ['skipped', 'properties']", "testcase without classname",
    ]  # fmt: skip


def test_there_is_a_case_for_each_dispatch_with_its_figures():
    """To the last digit; a failure with its reason and the line that shows it again."""
    found = {(case.classname, case.name): case for case in cases(junit(RECORDS))}
    assert len(found) == len(RECORDS)
    for record in RECORDS:
        own = record.provider == "IREE Codegen"
        name = record.configuration if own else f"{record.configuration} ({record.provider})"
        case = found[record.operation, name]
        properties = {each.name: each.value for each in case.child(junitparser.Properties) or ()}
        assert record.reproduce in case.system_out
        if record.is_failure:
            (result,) = case.result
            assert (result.type, result.message) == (
                record.verdict.value, f"{record.verdict.value}: {record.reason}",
            )  # fmt: skip
        if record.measurement is not None:
            low, high = record.measurement.interval_ms
            assert float(properties["median_ms"]) == record.measurement.median_ms
            assert (float(properties["interval_low_ms"]), float(properties["interval_high_ms"])) == (
                low,
                high,
            )
            assert float(properties["gflops"]) == record.measurement.gflops(record.flops)
            assert float(properties["limit_ms"]) == record.limit_ms
        else:
            assert properties == {}


def test_what_nobody_verified_has_not_passed():
    """Nothing is called correct that was not compared."""
    record = replace(RECORDS[0], verdict=Verdict.NOT_VERIFIED, reason="")
    unable = replace(record, reason="no memory for the reference")
    unsupported = replace(record, verdict=Verdict.NOT_SUPPORTED, reason="no f8 in numpy", measurement=None)
    results = [case.result[0] for case in cases(junit([record, unable, unsupported]))]
    assert [(type(each).__name__, each.message) for each in results] == [
        ("Skipped", "Not verified"), ("Failure", "Not verified: no memory for the reference"),
        ("Skipped", "Not supported: no f8 in numpy"),
    ]  # fmt: skip


def test_names_and_reasons_survive_xml():
    """What XML cannot hold is replaced by a mark."""
    (case,) = cases(junit([hostile(RECORDS[0])]))
    assert case.result[0].message.endswith(HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}"))


def test_no_records_are_an_empty_suite():
    assert cases(junit([])) == [] and "0 dispatches" in markdown([])


def test_a_case_without_properties_has_no_element_of_them():
    assert "properties" not in junit_xml("a", [Case("b", "c", properties={"empty": ""})], [])


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_json_is_what_the_file_holds_and_nothing_else(null_tree, run):
    """One document a line, so that `| jq` works; tags too."""
    null_tree(faults=FAULTS)
    outcome = run("profiler", "--format=json", "--output=data.csv", "--tags=run:3").checked(1)
    assert outcome.out == Path("data.jsonl").read_text()
    assert {json.loads(line)["tags"]["run"] for line in outcome.out.splitlines()} == {"3"}
    assert run("profiler", "--format=json", "--tags=run:3", "--dispatches=*_default").status == 0


@pytest.mark.usefixtures("in_process")
def test_one_run_writes_every_form(null_tree, run):
    """CSV, samples, Markdown and JUnit, of the same records."""
    null_tree(faults=FAULTS)
    run("profiler", "--output=data.csv", "--markdown=run.md", "--junit=run.xml", "--format=table").checked(1)
    records = read_records(Path("data.jsonl"))
    assert Path("run.md").read_text() == markdown(records)
    assert Path("run.xml").read_text() == junit(records)
    assert len(cases(Path("run.xml").read_text())) == 9


@pytest.mark.usefixtures("in_process")
def test_a_resumed_run_reports_what_was_done_before_too(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv", "--dispatches=*_default")
    run("profiler", "--output=data.csv", "--resume", "--junit=run.xml")
    assert len(cases(Path("run.xml").read_text())) == 9


def test_record_files_can_be_turned_into_every_form():
    """Later, and several at once."""
    one, other = (
        str(written(Path(name), some))
        for name, some in (("1.jsonl", RECORDS[:30]), ("2.jsonl", RECORDS[30:]))
    )
    assert report_main([one, other, "--markdown=run.md", "--junit=run.xml"]) == 0
    assert len(cases(Path("run.xml").read_text())) == len(RECORDS)
    assert len(tables(Path("run.md").read_text())) == 3


@pytest.mark.parametrize("option", ["--markdown", "--junit"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(null_tree, run, option):
    null_tree()
    for path, said in (("no/such/file", "there is no folder no/such"), (".", ". is a folder")):
        outcome = run("profiler", f"{option}={path}")
        assert (outcome.status, outcome.out) == (2, "") and f"{option}: {said}" in outcome.err
