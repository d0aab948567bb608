"""Counts agree with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatch_profiler.console.plurals import counted, plural
from dispatch_profiler.profiler.report.cli import main as report
from dispatch_profiler.profiler.report.join_cli import main as join


@pytest.mark.parametrize(
    ("singular", "several"),
    [
        ("operation", "operations"), ("dispatch", "dispatches"), ("process", "processes"), ("entry", "entries"),
        ("axis", "axes"), ("best configuration", "best configurations"), ("array", "arrays"),
    ],
)  # fmt: skip
def test_a_noun_is_plural_unless_there_is_one(singular: str, several: str):
    assert [plural(count, singular) for count in (0, 1, 2)] == [several, singular, several]
    assert [counted(count, singular) for count in (0, 1, 2)] == [
        f"0 {several}",
        f"1 {singular}",
        f"2 {several}",
    ]


#: `1 dispatches`, `1 of 1 dispatches`, `1 finished dispatches`
_WRONG = re.compile(
    r"\b1 (?:of 1 )?(?:\w+ )?(?:dispatches|operations|configurations|records|measurements|samples|figures|modules)\b"
)


def test_commands_count_one_dispatch_in_the_singular(run, capsys, monkeypatch, tmp_path):
    """Every command, with a tree of one dispatch on the null target."""
    monkeypatch.chdir(tmp_path)
    sizes = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    said = [
        run("generator", "--target=null", "--dispatches=*_default", *sizes),
        run("compile"),
        run("profiler", "--output=data.csv", "--budget=0.2", "--precision=1"),
        run("profiler", "--output=data.csv", "--resume"),
    ]
    report(["data.jsonl", "-o", "report.html", "--markdown=run.md"])
    report(["data.jsonl", "data.jsonl", "-o", "report.html"])
    join(["data.jsonl", "data.jsonl", "-o", "joined.csv"])
    text = "".join(each.out + each.err for each in said) + capsys.readouterr().err
    text += Path("run.md").read_text() + re.sub(r"<[^>]*>", "", Path("report.html").read_text())

    for singular in (
        "Generated 1 dispatch of 1 operation for null", "1 dispatch: 1 compiled", "1 dispatch: 1 SUCCESS",
        "already in data.jsonl: 1 of 1 dispatch\n", "the report of 1 dispatch to", "ignoring 1 duplicate record of 2",
        "Writing 1 record (1 duplicate removed)", "1 dispatch of 1 operation, 1 measured",
    ):  # fmt: skip
        assert singular in text
    assert _WRONG.findall(text) == []
