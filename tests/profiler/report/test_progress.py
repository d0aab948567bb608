"""How far a run is: a bar with the time left on a terminal, plain lines elsewhere, data on standard output."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.report.progress import Tally

RECORD = Record(
    Dispatch(Matmul(4, 6, 8), Default()), Provenance("null", "null", "x", 7), Verdict.SUCCESS, "",
    Measurement((0.25,), 10),
)  # fmt: skip
FAULTS = {"*_default": {"time_ms": 0.25}, "*_ukernels": {"fault": "nan"}, "*": {"time_ms": 0.3}}


def test_a_line_tells_how_long_the_rest_takes_if_it_is_alike():
    """2 of 8 in 30 s: 90 s are left."""
    times = iter([100.0, 130.0])
    tally = Tally(8, lambda: next(times))
    tally.add(RECORD)
    tally.add(replace(RECORD, provider="numpy").failed(Verdict.CRASHED, "SIGSEGV"))
    assert tally.note() == "1 failed"
    assert tally.line(RECORD) == (
        "[Profiling]: matmul_4x6x8_f32t_f32t_f32t_tile_config_default: SUCCESS, 0.25 ms  [2 of 8, 0:01:30 left]"
    )


def test_what_two_devices_measured_counts_once():
    tally = Tally(8, lambda: 0.0)
    steps = []
    for record in (RECORD, RECORD, replace(RECORD, provider="numpy")):
        tally.add(record)
        steps.append(tally.step)
    assert (steps, tally.done) == ([1, 0, 1], 2)


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_shows_a_bar_with_the_time_left(null_tree, columns):
    """In one line, however narrow; and it is gone before the table comes."""
    null_tree(faults=FAULTS)

    status, shown = on_a_terminal(columns, "profiler.py", "--format=table")

    assert status == 1
    bars = [line for line in re.split(r"[\r\n]+", plain(shown)) if line.startswith("Profiling")]
    assert bars and all(len(line) <= columns for line in bars)
    assert all(re.search(r"\d/9 .*(-:--:--|\d:\d\d:\d\d)$", line) for line in bars)
    assert re.search(r"9/9 1 failed 0:00:00$", bars[-1])
    assert "[Profiling]" not in shown and "Traceback" not in shown
    assert plain(shown).rindex("Profiling ") < plain(shown).index("Runtime(ms)")


def test_blocks_on_a_terminal_stay_whole_beside_the_bar(null_tree):
    """Each line as it would be in a file; a narrow terminal breaks none of them."""
    null_tree(faults=FAULTS)

    _, shown = on_a_terminal(40, "profiler.py", "--dispatches=*_default,*_ukernels")

    lines = plain(shown).replace("\r", "\n").split("\n")
    assert lines.count("Operation     : matmul_16x32x8_f32t_f32t_f32t") == 2
    assert "Dispatch      : matmul_16x32x8_f32t_f32t_f32t_flow_config_ukernels" in lines
    assert any(line.startswith("Profiling ") for line in lines)


def test_the_bar_is_no_data(null_tree):
    """With standard output in a file the terminal has the bar, and the file every record."""
    null_tree(faults=FAULTS)
    with Path("out.jsonl").open("wb") as file:
        status, shown = on_a_terminal(80, "profiler.py", "--format=json", stdout=file)
    assert status == 1
    assert "9/9 1 failed" in plain(shown) and "derived" not in shown
    assert len([json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]) == 9


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("format_", "count"), [("table", 9), ("json", 9), ("blocks", 0)])
def test_without_a_terminal_there_are_plain_lines(null_tree, run, format_, count):
    """On standard error; blocks tell themselves how far it is."""
    null_tree(faults=FAULTS)
    err = run("profiler", f"--format={format_}").err
    assert "\x1b" not in err
    lines = [line for line in err.splitlines() if line.startswith("[Profiling]: ")]
    assert len(lines) == count
    assert all(re.search(r"\[\d of 9, \d:\d\d:\d\d left\]$", line) for line in lines)
