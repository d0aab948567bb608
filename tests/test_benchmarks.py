"""What benchmarks make of what they measure; nothing is measured here."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from script_helpers import ROOT, load_script

from dispatch_profiler.configurations import CpuTiles, Formed, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import BatchMatmul, Matmul
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.strategies.prior import RecordedSweep

tables = load_script("benchmarks/_table.py")
figures = load_script("benchmarks/_figures.py")
measurement = load_script("benchmarks/measurement.py")
operations = load_script("benchmarks/operations.py")
tuned = load_script("benchmarks/tuned.py")
tuned_sides = load_script("benchmarks/_tuned_sides.py")
replays = load_script("benchmarks/search.py")
several_devices = load_script("benchmarks/devices.py")
Figure, Rate, Row = figures.Figure, figures.Rate, measurement.Row
FULL, QUICK = measurement.Scale(), measurement.QUICK


# -- every benchmark -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(p.name for p in (ROOT / "benchmarks").glob("[!_]*.py")))
def test_every_benchmark_has_a_quick_form_and_writes_json(path: str, monkeypatch, capsys):
    if path == "report.py":
        pytest.importorskip("playwright")
        pytest.importorskip("plotly")
    program = load_script(f"benchmarks/{path}")
    monkeypatch.setattr(sys, "argv", [path, "--help"])

    with pytest.raises(SystemExit) as ended:
        program.main()

    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--quick" in said
    assert "--json PATH" in said


def test_rows_are_written_as_json_and_a_missed_goal_is_status_1(tmp_path: Path, capsys):
    rows = [tables.at_least("speed", 2.0, "x", 1.5), tables.below("size", 3.0, "MiB", 3.0)]

    assert tables.report(rows, tmp_path / "rows.json") == 1
    assert tables.report(rows[:1], None) == 0

    assert json.loads((tmp_path / "rows.json").read_text()) == [
        {"name": "speed", "value": 2.0, "unit": "x", "must": ">= 1.5", "holds": True},
        {"name": "size", "value": 3.0, "unit": "MiB", "must": "< 3", "holds": False},
    ]
    assert "MISSED" in capsys.readouterr().out


def test_every_benchmark_ends_in_the_same_way():
    for path in sorted((ROOT / "benchmarks").glob("[!_]*.py")):
        assert re.search(r'if __name__ == "__main__":\n    exit_with\(', path.read_text()), path.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "\ntuned.py: interrupted before the table was complete\n"), ([tables.CHILD], "")],
)
def test_ctrl_c_is_one_sentence_and_status_130(monkeypatch, capsys, arguments: list[str], said: str):
    def main() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["benchmarks/tuned.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        tables.exit_with(main)
    assert (ended.value.code, capsys.readouterr().err) == (130, said)


# -- figures ---------------------------------------------------------------------------------------


def test_rates_are_compared_at_equal_information():
    """61 against 9 a minute, known to 3.1 % and 2.5 %: not as many as 61 / 9, and far from 0."""
    ours, theirs = Rate(61 / 60, 0.031), Rate(9 / 60, 0.025)

    assert figures.rate_ratio(ours, theirs) == pytest.approx(61 / 9 * (0.025 / 0.031) ** 2)
    assert 4 < figures.rate_ratio(ours, theirs) < 5


def test_four_times_the_samples_are_as_fast_as_half_the_width_is_wide():
    """What takes n samples of a noise s is known to s / sqrt(n): the ratio is 1 however many there are."""
    for samples in (1, 10, 1000):
        one = Rate(1 / samples, 0.1 / math.sqrt(samples))
        assert figures.rate_ratio(one, Rate(1.0, 0.1)) == pytest.approx(1.0)
        assert figures.rate_ratio(Rate(1.0, 0.1), one) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [((1, 3), (2, 4), True), ((1, 2), (2, 3), True), ((1, 2), (2.1, 3), False), ((1, 9), (4, 5), True)],
)
def test_intervals_that_share_a_value_overlap(one, other, overlap: bool):
    a, b = (Figure(sum(each) / 2, *each) for each in (one, other))

    assert a.overlaps(b) is b.overlaps(a) is overlap


def test_the_operations_of_both_runs_count():
    one = {name: Figure(m, m - 1, m + 1) for name, m in (("a", 1), ("b", 10), ("c", 20), ("d", 30))}
    other = {name: Figure(m, m - 1, m + 1) for name, m in (("a", 2), ("b", 15), ("c", 20), ("e", 30))}

    assert figures.overlapping(one, other) == pytest.approx(200 / 3)


def test_kendall_tau_is_that_of_scipy_where_no_intervals_overlap():
    first, second = [1, 2, 3, 4, 5, 6], [2, 1, 3, 6, 4, 5]
    runs = [{str(i): Figure(m, m - 0.1, m + 0.1) for i, m in enumerate(run)} for run in (first, second)]

    tau, pairs = figures.kendall_tau(*runs)

    assert tau == pytest.approx(stats.kendalltau(first, second).statistic)
    assert pairs == 15


def test_ranks_that_no_run_tells_apart_do_not_count():
    one = {"a": Figure(1, 0, 3), "b": Figure(2, 1, 4), "c": Figure(9, 8, 10)}
    other = {"a": Figure(2, 1, 4), "b": Figure(1, 0, 3), "c": Figure(9, 8, 10)}

    assert figures.kendall_tau(one, other) == (1.0, 2)
    assert figures.kendall_tau({"a": one["a"], "b": one["b"]}, other) == (0.0, 0)


@pytest.mark.parametrize("trials", [1, 8, 17, 50, 200])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.5])
def test_as_many_failures_are_allowed_as_chance_may_bring(trials: int, rate: float):
    most = figures.allowed(trials, rate)

    assert stats.binom.sf(most, trials, rate) < 0.02
    assert most == 0 or stats.binom.sf(most - 1, trials, rate) >= 0.02


# -- goals of measurement.py -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "scale", "holds"),
    [
        ({"same": 196, "faster": 2, "slower": 2}, FULL, True),
        ({"same": 195, "faster": 3, "slower": 2}, FULL, False),
        ({"same": 7, "slower": 1}, QUICK, True),
        ({"same": 6, "slower": 2}, QUICK, False),
    ],
)
def test_a_pair_of_the_same_is_seldom_called_different(found, scale, holds: bool):
    assert measurement.called_different_row(found, scale, "").holds is holds


@pytest.mark.parametrize(
    ("found", "scale", "holds"),
    [
        ({"slower": 95, "unclear": 5}, FULL, True),
        ({"slower": 94, "same": 6}, FULL, False),
        ({"slower": 6, "unclear": 2}, QUICK, True),
        ({"slower": 5, "unclear": 3}, QUICK, False),
    ],
)
def test_three_percent_more_work_is_called_slower(found, scale, holds: bool):
    row = measurement.called_slower_row(found, scale, ", a core half loaded")

    assert row.holds is holds
    assert row.name == "pairs with 3 % more work called slower, a core half loaded"


@pytest.mark.parametrize(("shifted", "holds"), [(0, True), (5, True), (6, False)])
def test_two_runs_agree_on_95_of_100_operations(tmp_path: Path, monkeypatch, shifted: int, holds: bool):
    names = [f"operation {number}" for number in range(100)]
    one = {name: Figure(1.0, 0.99, 1.01) for name in names}
    other = {**one, **{name: Figure(1.1, 1.09, 1.11) for name in names[:shifted]}}
    runs = iter([one, other])
    monkeypatch.setattr(measurement, "compiled", lambda folder, operations: None)
    monkeypatch.setattr(measurement, "candidates_of", lambda manifest: [])
    monkeypatch.setattr(measurement, "figures", lambda candidates, rule: next(runs))

    row = measurement.overlap_row(tmp_path, FULL)

    assert (row.value, row.must, row.holds) == (100 - shifted, ">= 95", holds)


def test_a_hundred_operations_are_repeated_and_quick_takes_some_of_every_extent():
    assert len(set(FULL.repeated)) == 100
    for extent in ("m", "n", "k"):
        extents = [{getattr(operation, extent) for operation in s.repeated} for s in (FULL, QUICK)]
        assert extents[0] == extents[1]


# -- replays of searches ---------------------------------------------------------------------------


class InOrder:
    """A strategy that proposes what it was given, in order."""

    def __init__(self, configurations):
        self.left = list(configurations)
        self.rounds = []

    def ask(self, count):
        found, self.left = self.left[:count], self.left[count:]
        return found

    def tell(self, trials):
        self.rounds.append([trial.milliseconds for trial in trials])


def invented_sweep(times):
    tiles = [CpuTiles((m, 8), (1, 8, 1)) for m in range(1, len(times) + 1)]
    return RecordedSweep(
        Matmul(128, 8, 8), parse_target("llvm-cpu"), 16, (), dict(zip(tiles, times, strict=True))
    )


def test_regret_is_how_much_slower_the_fastest_of_the_first_evaluations_is():
    """Failed ones count as evaluations too."""
    sweep = invented_sweep([None, 3.0, *[2.0] * 13, 1.5, 1.5, *[1.2] * 50, 1.0])
    strategy = InOrder(sweep.times)
    assert replays.regrets(strategy, sweep, 2) == pytest.approx({16: 50.0, 64: 20.0})
    assert [len(each) for each in strategy.rounds] == [2, *[8] * 7, 6]
    assert strategy.rounds[0] == [None, 3.0]


def test_a_space_that_is_exhausted_early_keeps_its_last_regret():
    sweep = invented_sweep([2.0] * 10 + [1.0])
    assert replays.regrets(InOrder(list(sweep.times)[:10]), sweep, 2) == {16: 100.0, 64: 100.0}


def test_the_default_strategy_is_judged_by_its_mean_over_operations_and_against_random():
    found = [
        replays.Replay(name, operation, {16: [regret] * 2, 64: [regret / 4] * 2})
        for name, regrets in (("prior", (2.0, 8.0)), ("random", (9.0, 10.0)))
        for operation, regret in zip("ab", regrets, strict=True)
    ]
    rows = {row.name: row for row in replays.summary(found)}
    after = rows["prior: mean regret after 16 (standard error 0.0)"]
    assert (after.value, after.must, after.holds) == (5.0, "<= 4", False)
    assert rows["prior: mean regret after 64 (standard error 0.0)"].holds
    assert rows["random: mean regret after 16 (standard error 0.0)"].must == "any"
    assert not rows["prior against random after 16"].holds


@pytest.mark.slow
def test_a_prior_is_never_trained_on_the_operation_that_it_is_judged_on(monkeypatch):
    """Nor on the same operation with another epilogue."""
    trained = []
    monkeypatch.setattr(replays, "train_each", lambda sweeps, seeds: trained.append(sweeps))
    monkeypatch.setattr(replays, "makers", lambda priors: {})
    recorded = [*replays.SWEEPS.glob("*.jsonl.gz"), *replays.SEARCHES.glob("*.jsonl.gz")]
    of_one = [path for path in recorded if "28x28x128_3x3" in path.name]

    replays.replays(of_one[0], recorded, 2)

    (sweeps,) = trained
    assert len(of_one) == 3  # Two sweeps, of which one has an epilogue, and a search.
    assert len(sweeps) == len(recorded) - 3
    assert not any("28x28x128_128x3x3" in sweep.operation.name for sweep in sweeps)


# -- several devices -------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_and_two_null_devices_find_the_same_winners(capsys):
    rows = several_devices.compared(parse_target("null"), ("null://0", "null://1"), 2, 3)

    assert [row.must for row in rows] == [">= 1.7", ">= 100"]
    assert rows[1].value == 100.0
    assert "3 evaluations" in capsys.readouterr().out


def test_tuned_workloads_are_weighted_by_how_often_an_operation_runs():
    one, other = Matmul(16, 16, 16), Matmul(32, 32, 32)
    times = {one: tuned.Times(4.0, 2.0, 3.0, 1.0, 1.2), other: tuned.Times(9.0, 3.0, 3.0, 3.0, 3.5)}
    (sums,) = tuned.totals([times], {one: 5, other: 1})
    assert sums == tuned.Times(29.0, 13.0, 18.0, 8.0, 9.5)
    rows = list(tuned.rows_of("work", tuned.Goals(2.0, 1.5, None), [sums, sums], tuned.UNPACKED_SIDES))
    assert [round(row.value, 3) for row in rows] == [2.231, 1.385, 0.731, 0.528, 0.615, 0.444]
    assert [row.holds for row in rows] == [True, False, True, True, True, True]


def test_packed_weights_are_compared_with_tuned_ones_and_with_libraries_that_pack():
    took = {"tuned": 2.0, "packed": 1.0, "torch-prepacked": 1.5, "torch": 1.75}
    assert tuned.times_of(took, 0.5, 0.6, packed=True) == tuned.Times(2.0, 1.0, 1.5, 0.5, 0.6)
    # What has no packed form runs as tuned.
    del took["packed"]
    assert tuned.times_of(took, 0.5, 0.6, packed=True) == tuned.Times(2.0, 2.0, 1.5, 0.5, 0.6)


def test_candidates_with_packed_weights_have_the_tiles_of_the_library():
    linear = Matmul(64, 96, 32, rhs_layout="n")
    tiles = CpuTiles((32, 32), (8, 32, 8))
    found = tuned_sides.packed_of(linear, Dispatch(linear, Tuned(Formed("transposed_panels", tiles))))
    assert all(each.configuration.packs_weight for each in found)
    assert Formed("panels", tiles, packed=True) in [each.configuration for each in found]
    assert tuned_sides.packed_of(BatchMatmul(2, 64, 64, 32, rhs_layout="n"), None) == ()


def test_what_has_neither_entry_nor_form_runs_as_the_default():
    took = {"default": 3.0, "torch": 2.0, "numpy": 1.0}
    assert tuned.times_of(took, 0.5, 0.6, packed=False) == tuned.Times(3.0, 3.0, 1.0, 0.5, 0.6)


cliffs = load_script("benchmarks/cliffs.py")
KINDS = tuple(cliffs.KINDS)


def test_a_number_is_always_the_same_case():
    assert [cliffs.case_of(number, "f32") for number in range(30)] == [
        cliffs.case_of(number, "f32") for number in range(30)
    ]


def test_three_hundred_cases_cover_what_the_benchmark_promises():
    cases = [cliffs.case_of(number, "f32") for number in range(300)]
    signatures = [case.signature for case in cases]

    assert {case.kind for case in cases} == set(KINDS)
    assert {str(each.mode) for each in signatures} == {"forward", "input_backward", "weight_backward"}
    products = [each for each in signatures if isinstance(each, cliffs.GEMMSignature)]
    extents = [extent for each in products for extent in (*each.a_shape, each.b_shape[1])]
    assert 1 <= min(extents) < 5
    assert 900 < max(extents) <= 1100
    assert sum(extent % 4 != 0 for extent in extents) > len(extents) / 2
    strides = [each.stride[0] for each in signatures if getattr(each, "transposed", False)]
    assert max(strides) > 24
    assert all(each.operation.flops <= cliffs.MOST_FLOPS for each in signatures)
    assert len({case.name.partition(": ")[2] for case in cases}) > 290


@cache
def _smallest() -> list[int]:
    """Numbers of cases whose reference takes little time."""
    return sorted(range(180), key=lambda number: cliffs.case_of(number, "f32").signature.operation.flops)


@pytest.mark.parametrize("place", range(45))
def test_torch_computes_what_a_launch_does(place: int):
    """The reference in numpy is the truth."""
    pytest.importorskip("torch")
    signature = cliffs.case_of(_smallest()[place], "f32").signature
    arguments = signature.get_sample_args(seed=place)

    found = cliffs.torch_call(signature)(*arguments)

    (spec,) = signature.launch.results
    assert tuple(found.shape) == tuple(spec.shape)
    placed = sorted(
        zip(signature.launch.arguments, arguments, strict=True), key=lambda each: each[0].position
    )
    operands = [argument.numpy().reshape(given.kernel_shape) for given, argument in placed]
    (expected,) = signature.operation.reference(operands)
    values = np.asarray(expected.expected, np.float64)
    difference = np.abs(found.numpy().reshape(spec.kernel_shape) - values).max()
    assert difference <= 1e-4 * max(1.0, np.abs(values).max())


def _times(launch: float, compiled: float, seconds: float = 1.0) -> object:
    sides = {
        "torch": [1.0] * 5,
        "torch, compiled": [1.0] * 5,
        "launch": [1.0 / launch] * 5,
        "compiled": [1.0 / compiled] * 5,
    }
    return cliffs.Times(sides, seconds, 2.0)


def test_goals_are_for_the_mean_and_the_slowest_and_a_failed_case_misses_one():
    cases = [cliffs.case_of(number, "f32") for number in range(3)]
    good = list(zip(cases, [_times(0.5, 1.0), _times(2.0, 0.95), _times(1.0, 1.1)], strict=True))
    bad = list(zip(cases, [_times(0.3, 0.8, 31.0), _times(0.5, 1.0), None], strict=True))

    assert all(row.holds for row in cliffs.rows_of(good))
    missed = [row.name for row in cliffs.rows_of(bad) if not row.holds]
    assert missed[0] == f"{cases[2].name}: failed"
    assert missed[1:] == [
        "launches against torch, 2 cases",
        "the slowest launch",
        "the longest first call of a launch",
        "the slowest compiled function",
    ]


def test_a_case_that_fails_is_printed_and_the_next_one_is_measured(capsys, monkeypatch):
    def measure(number: int, *_: object) -> object:
        if number == 5:
            raise RuntimeError("no kernel")
        return _times(1.0, 1.0)

    monkeypatch.setattr(cliffs, "in_new_process", lambda function, *arguments: function(*arguments))
    options = SimpleNamespace(first=5, type="f32", kinds=KINDS)

    found = list(cliffs.measured(options, 2, measure))

    assert [times is None for _, times in found] == [True, False]
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("failed: RuntimeError: no kernel")
    assert said[1].startswith("  1.00 launch   1.00 compiled")


def test_a_number_names_the_same_case_whatever_kinds_are_asked_for():
    assert cliffs.numbers_of(KINDS, 5, 3) == [5, 6, 7]
    assert [cliffs.case_of(each, "f32").kind for each in cliffs.numbers_of(["transposed"], 4, 3)] == [
        "transposed"
    ] * 3


def test_no_cases_are_an_error():
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 upwards, but got '0'"):
        cliffs.positive("0")


def test_an_unknown_kind_is_an_error_that_names_those_there_are():
    with pytest.raises(
        argparse.ArgumentTypeError, match="unknown kind 'matrix'; available: product, convolution"
    ):
        cliffs.kinds_of("product,matrix")


def test_ctrl_c_shows_what_was_measured(capsys, monkeypatch):
    def measured(*_: object) -> object:
        yield cliffs.case_of(0, "f32"), _times(1.0, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(cliffs, "measured", measured)
    monkeypatch.setattr("sys.argv", ["cliffs.py", "--count=9"])

    assert cliffs.main() == 130
    said = capsys.readouterr().out
    assert "interrupted after 1 of 9 cases" in said
    assert "launches against torch, 1 cases" in said
