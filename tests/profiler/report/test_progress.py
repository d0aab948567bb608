"""How far a run is: a bar with the time left on a terminal, plain lines elsewhere, data on standard output."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.configurations import Default
from dispatch_profiler.console.remaining_time import RemainingTime
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import Measurement, MeasureOptions
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.report.progress import Tally
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.runtime.null import NullCall

RECORD = Record(
    Dispatch(Matmul(4, 6, 8), Default()), Provenance("null", "null", "x", 7), Verdict.SUCCESS, "",
    Measurement((0.25,), 10),
)  # fmt: skip
#: Eight dispatches of one small operation.
EIGHT = [Candidate(RECORD.dispatch, "null")] * 8
FAULTS = {"*_default": {"time_ms": 0.25}, "*_ukernels": {"fault": "nan"}, "*": {"time_ms": 0.3}}


# -- the time left ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run whose costs are known: of each operation, the seconds of its reference and of its dispatches."""

    operations: tuple[tuple[float, tuple[float, ...]], ...]
    #: FLOP/s of references, which the estimator does not know.
    rate: float = 5e9
    at_once: int = 32

    def estimates(self) -> list[tuple[float, float, float]]:
        """After each record: the part of the run that is over, the time left, and the estimate of it."""
        total = sum(reference + sum(each) for reference, each in self.operations)
        costs: list[float | None] = []
        for reference, each in self.operations:
            costs += [reference * self.rate, *[None] * (len(each) - 1)]
        remaining, now, told = RemainingTime(costs, 0.0), 0.0, []
        for reference, each in self.operations:
            for begin in range(0, len(each), self.at_once):
                cycle = each[begin : begin + self.at_once]
                for at, seconds in enumerate(cycle):
                    remaining.begin(now)
                    now += 0.3 * seconds + (reference if begin + at == 0 else 0.0)
                now += 0.7 * sum(cycle)
                for _ in cycle:
                    remaining.finish(now)
                    left = remaining.left(now)
                    assert left is not None
                    told.append((now / total, total - now, left))
        return told


SIZES = [2**i for i in range(6, 12)]
RUNS = {
    "one operation": Run(((0.0, (1.0,) * 200),)),
    "an expensive reference": Run(((10.0, (1.0,) * 100),)),
    "operations alike": Run(((2.0, (1.0,) * 9),) * 12),
    "more than are begun at once": Run(((2.0, (1.0,) * 70),) * 12),
    "one configuration each": Run(((3.0, (1.0,)),) * 40),
    "a growing sweep": Run(tuple(((m / 256) ** 3, (1.0,) * 9) for m in SIZES for _ in range(6))),
    "a growing sweep, one configuration each": Run(tuple(((i / 10) ** 3, (1.0,)) for i in range(1, 61))),
    "a shrinking sweep": Run(tuple(((m / 256) ** 3, (1.0,) * 9) for m in SIZES[::-1] for _ in range(6))),
    "uneven dispatches": Run(((1.0, (0.1, 2.0, 0.3, 1.0, 1.0, 0.2, 0.4, 2.0)),) * 20),
    "a fast machine": Run(((0.01, (1.0,) * 9),) * 12, rate=2e12),
}


@pytest.mark.parametrize("run_", RUNS.values(), ids=RUNS)
def test_after_a_tenth_of_a_run_the_time_left_is_known_within_a_factor_of_two(run_: Run):
    later = [(left, told) for part, left, told in run_.estimates() if 0.1 <= part <= 0.9]
    assert all(left / 2 <= told <= left * 2 for left, told in later), later


def test_the_first_of_a_burst_does_not_stand_for_its_whole_time():
    """32 of 64 have taken 32 s together when the first of them is done: 32 s are left, not 63 times 32."""
    remaining = RemainingTime([0.0, *[None] * 63], 100.0)
    for second in range(32):
        remaining.begin(100.0 + second)
    assert remaining.left(131.0) is None
    remaining.finish(132.0)
    assert remaining.left(132.0) == pytest.approx(32.0)


def test_while_a_cycle_runs_its_time_counts_down_to_what_has_not_begun():
    remaining = RemainingTime([0.0, 0.0, 0.0, 0.0], 0.0)
    remaining.begin(0.0)
    remaining.finish(10.0)
    remaining.begin(10.0)
    assert remaining.left(14.0) == pytest.approx(26.0)
    assert remaining.left(25.0) == pytest.approx(20.0)


def test_a_run_that_takes_no_time_has_none_left():
    remaining = RemainingTime([1e9, None], 5.0)
    remaining.finish(5.0)
    assert remaining.left(5.0) == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_on_the_clock_of_the_null_device_the_time_left_is_known_within_a_factor_of_two(
    null_tree, monkeypatch
):
    """Eight operations of nine configurations, each slower than the one before, sampled in turns."""
    sizes = [16 * i for i in range(1, 9)]
    faults = {f"matmul_{m}x*": {"time_ms": 0.2 + m / 200} for m in sizes}
    null_tree(
        f"--problem-m={','.join(map(str, sizes))}",
        "--problem-n=32",
        "--problem-k=8",
        "--lhs=f32",
        faults=faults,
    )
    manifest = load_manifest(Tree(Path()))

    passed = []
    take = NullCall.time

    def time(call: NullCall, calls: int) -> float:
        passed.append(take(call, calls))
        return passed[-1]

    def clock() -> float:
        return sum(passed)

    monkeypatch.setattr(NullCall, "time", time)
    tally = Tally(TreeCandidates(manifest.tree).candidates(manifest.dispatches()), clock)
    told = []
    with Evaluator(EvaluatorOptions("null", measure=MeasureOptions(StopRule(count=3)))) as evaluator:
        for record in evaluator.records(tally.begun()):
            tally.add(record)
            left = tally.seconds_left
            assert left is not None
            told.append((clock(), left))
    total = clock()
    later = [(total - at, left) for at, left in told if 0.1 <= at / total <= 0.9]
    assert total > 0 and len(later) > 40
    assert all(left / 2 <= estimate <= left * 2 for left, estimate in later), later


# -- lines and bars --------------------------------------------------------------------------------


def test_a_line_tells_how_long_the_rest_takes():
    """2 of 8 in 30 s: 90 s are left."""
    times = iter([100.0, 115.0, 130.0, 130.0])
    tally = Tally(EIGHT, lambda: next(times))
    tally.add(RECORD)
    tally.add(replace(RECORD, provider="numpy").failed(Verdict.CRASHED, "SIGSEGV"))
    assert tally.note() == "1 failed"
    assert tally.line(RECORD) == (
        "[Profiling]: matmul_4x6x8_f32t_f32t_f32t_tile_config_default: SUCCESS, 0.25 ms  [2 of 8, 0:01:30 left]"
    )


def test_before_anything_is_done_the_time_left_is_not_known():
    assert Tally(EIGHT, lambda: 0.0).left() == "-:--:--"


def test_what_two_devices_measured_counts_once():
    tally = Tally(EIGHT, lambda: 0.0)
    steps = []
    for record in (RECORD, RECORD, replace(RECORD, provider="numpy")):
        tally.add(record)
        steps.append(tally.step)
    assert (steps, tally.done) == ([1, 0, 1], 2)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, pytest.param(120, marks=pytest.mark.slow)])
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
    after = plain(shown)[plain(shown).rindex("Profiling ") :]
    assert ("Runtime(ms)" in after) == (columns == 120) and "tile_config_default" in after
    assert max(map(len, re.split(r"[\r\n]+", after))) <= columns


@pytest.mark.slow
@pytest.mark.parametrize("columns", [200, pytest.param(40, marks=pytest.mark.slow)])
def test_no_line_of_a_run_is_over_120_columns(columns):
    """With the long names of a convolution, and with a reason."""
    size = (
        "--op-kind=conv2d",
        "--conv-n=1",
        "--conv-h=6",
        "--conv-w=6",
        "--conv-c=4",
        "--conv-k=4",
        "--lhs=f32",
    )
    Path("faults.yaml").write_text("'*_ukernels': {not_compiled: 'this kernel is not there, ' }\n")
    for command in (
        ("generator.py", "--target=null:faults.yaml", *size),
        ("compile.py", "-j1"),
        ("profiler.py", "--dispatches=*default,*ukernels"),
        ("profiler.py", "--dispatches=*default,*ukernels", "--format=table"),
    ):
        _, shown = on_a_terminal(columns, *command)
        lines = re.split(r"[\r\n]+", plain(shown))
        assert "Traceback" not in shown and max(map(len, lines)) <= 120, command


@pytest.mark.slow
def test_blocks_on_a_terminal_stay_whole_beside_the_bar(null_tree):
    """Each line as it would be in a file; a narrow terminal breaks none of them."""
    null_tree(faults=FAULTS)

    _, shown = on_a_terminal(40, "profiler.py", "--dispatches=*_default,*_ukernels")

    lines = plain(shown).replace("\r", "\n").split("\n")
    assert lines.count("Operation     : matmul_16x32x8_f32t_f32t_f32t") == 2
    assert "Dispatch      : matmul_16x32x8_f32t_f32t_f32t_flow_config_ukernels" in lines
    assert any(line.startswith("Profiling ") for line in lines)


@pytest.mark.slow
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
