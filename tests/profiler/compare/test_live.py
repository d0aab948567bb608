"""`compare --live`: on the null device, whose times are known, and on this CPU with the same code twice."""

from __future__ import annotations

import csv
import json
import re
from functools import partial
from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.profiler import cli
from dispatch_profiler.profiler.compare import live
from dispatch_profiler.profiler.compare.cli import main as compare_main
from dispatch_profiler.profiler.compare.live import match
from dispatch_profiler.profiler.compare.pairing import By
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import TreeCandidates
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.verification.verify import Expected, VerifiedHashes

SHAPE = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")


@pytest.fixture
def no_processes(in_process, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch_profiler.profiler.evaluation import workers

    monkeypatch.setattr(live, "Worker", workers.Worker)


@pytest.fixture
def two_trees(run, no_processes):
    """`two_trees(base_faults, new_faults)`: the same dispatches, compiled by two null compilers."""

    def make(base: str, new: str) -> None:
        for name, faults in (("base", base), ("new", new)):
            Path(f"{name}.yaml").write_text(faults)
            run("generator", f"--generated-dir={name}", f"--target=null:{name}.yaml", *SHAPE)
            assert run("compile", f"--generated-dir={name}", "-j1").status in (0, 1)

    return make


def compared(capsys, *arguments: str) -> tuple[int, str, dict[str, str]]:
    """Exit status, what was printed, and configuration -> outcome."""
    status = compare_main(["--live", "--format=markdown", *arguments])
    out = capsys.readouterr().out
    rows = re.findall(r"^\| \**([a-z ]+?)\** \|.*`\S*?((?:tile|flow)_config_[^`]*)`", out, flags=re.MULTILINE)
    return status, out, {configuration: outcome for outcome, configuration in rows}


def test_what_takes_longer_is_slower_and_what_does_not_is_the_same(two_trees, capsys):
    two_trees(
        '"*": {time_ms: 1.0}',
        '"*_default": {time_ms: 1.05}\n"*_ukernels": {time_ms: 0.9}\n"*": {time_ms: 1.0}',
    )

    status, out, outcomes = compared(capsys, "base", "new", "--fail-on=slower:3%")

    assert status == 1
    assert outcomes.pop("tile_config_default") == "slower"
    assert outcomes.pop("flow_config_ukernels") == "faster"
    assert set(outcomes.values()) == {"same"}
    assert "measured by paired sampling in one process" in out


def test_what_was_not_compiled_or_is_wrong_says_so(two_trees, capsys):
    two_trees(
        '"*_default": {not_compiled: no such tile}\n"*": {time_ms: 1.0}',
        '"*_ukernels": {fault: wrong_element}\n"*_data_tiling": {fault: clock_zero}\n"*": {time_ms: 1.0}',
    )

    _, out, outcomes = compared(capsys, "base", "new")

    assert outcomes["tile_config_default"] == "not measured"
    assert "base: no such tile" in out
    assert outcomes["flow_config_ukernels"] == "failed"
    assert "new: FAILED (" in out
    assert outcomes["flow_config_data_tiling"] == "not measured"
    assert "the clock stood still or went back: no figure can be trusted" in out


def test_two_configurations_of_one_tree_are_compared_by_operation(two_trees, capsys):
    two_trees('"*_default": {time_ms: 2.0}\n"*": {time_ms: 1.0}', '"*": {}')

    status, _, outcomes = compared(
        capsys, "base", "base", "--by=operation", "--base-dispatches=*_default", "--new-dispatches=*_ukernels"
    )

    assert status == 0
    assert outcomes == {"tile_config_default -> flow_config_ukernels": "faster"}


def test_nothing_on_both_sides_is_refused(two_trees):
    two_trees('"*": {}', '"*": {}')
    entries = list(load_manifest(Tree(Path("base"))).dispatches())

    with pytest.raises(UsageError, match="no dispatch is in both base and new") as caught:
        match(entries[:1], entries[1:], By.DISPATCH)
    assert "--by=operation" in caught.value.hint
    with pytest.raises(UsageError, match="new has more than one configuration of matmul_16x32x8"):
        match(entries[:1], entries, By.OPERATION)


def test_what_says_how_to_measure_needs_live(capsys):
    assert compare_main(["a.jsonl", "b.jsonl", "--budget=3"]) == 2
    assert "--device and --budget require --live\nhint: add --live" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.usefixtures("shared_cache")
def test_the_same_code_on_this_cpu_is_neither_faster_nor_slower(run, capsys):
    """With a threshold that no two copies of one kernel differ by."""
    run(
        "generator",
        "--problem-m=64",
        "--problem-n=64",
        "--problem-k=64",
        "--lhs=f32",
        "--default-config=only",
    )
    assert run("compile", "-j1").status == 0

    _, out, outcomes = compared(capsys, ".", ".", "--threshold=60%", "--budget=30")

    assert outcomes["tile_config_default"] in ("same", "unclear"), out


# -- profile --confirm -----------------------------------------------------------------------------


@pytest.fixture
def confirmed(run, null_tree, no_processes):
    """`confirmed(faults, *options)`: what a run with --confirm says of each dispatch that it confirms."""

    def make(faults: dict[str, dict[str, object]], *options: str):
        null_tree(faults=faults)
        outcome = run("profiler", "--output=data.csv", "--format=table", "--confirm", *options)
        records = read_records(Path("data.jsonl"))
        return outcome, {record.configuration: record.confirmed for record in records if record.confirmed}

    return make


def test_the_best_is_confirmed_where_it_is_faster(confirmed):
    """In the table, the summary and both files; other records have no word of it."""
    outcome, found = confirmed(
        {"*_default": {"time_ms": 2.0}, "*_ukernels": {"time_ms": 1.0}, "*": {"time_ms": 3.0}}
    )
    assert list(found) == ["flow_config_ukernels"]
    (best,) = found.values()
    assert best.outcome == "faster"
    assert best.speed == pytest.approx(2.0, rel=0.05)
    assert best.low <= best.speed <= best.high
    assert "  confirmed by paired sampling: 2.0" in outcome.out
    assert "faster than the default: 1 of 1 best configuration" in outcome.err
    with Path("data.csv").open(newline="") as file:
        rows = {row["Configuration"]: row for row in csv.DictReader(file)}
    assert rows["flow_config_ukernels"]["confirmed"] == "faster"
    assert float(rows["flow_config_ukernels"]["confirmed_speed"]) == best.speed
    assert rows["tile_config_default"]["confirmed"] == ""


def test_what_was_only_luck_is_not_confirmed(run, null_tree, no_processes, monkeypatch):
    """Figures of the run say 2x; the pair, measured together, takes the same time."""
    null_tree(faults={"*": {"time_ms": 1.0}})
    assert run("profiler", "--output=data.csv").status == 0
    rows = [json.loads(line) for line in Path("data.jsonl").read_text().splitlines()]
    for row in rows:
        if row["configuration"] == "flow_config_ukernels":
            row["measurement"]["samples_ms"] = [ms / 2 for ms in row["measurement"]["samples_ms"]]
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    outcome = run("profiler", "--output=data.csv", "--resume", "--confirm", "--format=table")

    assert "not confirmed by paired sampling: 1.0" in outcome.out
    assert ", same" in outcome.out
    assert "faster than the default: 0 of 1 best configuration" in outcome.err


def test_a_default_that_is_the_best_has_nothing_to_confirm(confirmed):
    outcome, found = confirmed({"*_default": {"time_ms": 1.0}, "*": {"time_ms": 3.0}})
    assert not found
    assert "0 of 0 best configurations" in outcome.err


def test_ctrl_c_keeps_what_is_confirmed_already(run, null_tree, no_processes, monkeypatch):
    """Interrupted in the second of two operations."""
    null_tree(
        *("--problem-m=16,64", "--problem-n=32", "--problem-k=8", "--lhs=f32"),
        faults={"*_default": {"time_ms": 2.0}, "*_ukernels": {"time_ms": 1.0}, "*": {"time_ms": 3.0}},
    )
    whole = live.LiveComparison.pairs

    def pairs(comparison, matched):
        yield next(whole(comparison, matched))
        raise KeyboardInterrupt

    monkeypatch.setattr(live.LiveComparison, "pairs", pairs)
    outcome = run("profiler", "--output=data.csv", "--format=table", "--confirm").checked(130)
    assert outcome.out.count("confirmed by paired sampling: 2.0") == 1
    records = read_records(Path("data.jsonl"))
    assert [record.confirmed.outcome for record in records if record.confirmed] == ["faster"]


def test_a_device_that_fails_while_it_confirms_loses_no_table(run, null_tree, no_processes, monkeypatch):
    null_tree(faults={"*_default": {"time_ms": 2.0}, "*": {"time_ms": 1.0}})

    def gone(*_: object) -> None:
        raise TargetError("no device 'null' on this machine")

    monkeypatch.setattr(live.LiveComparison, "pairs", gone)
    outcome = run("profiler", "--format=table", "--confirm")

    assert outcome.status == 2 and "no device 'null'" in outcome.err
    assert outcome.out.count("SUCCESS") == 9
    assert "9 finished dispatches saved in" in outcome.err


@pytest.mark.slow
@pytest.mark.alone
def test_on_this_cpu_the_pair_and_not_the_run_decides(run, monkeypatch):
    """The figures of the run say that tiles are 20 times as fast as the default; measured together, they are not."""
    monkeypatch.setattr(cli, "LiveOptions", partial(live.LiveOptions, seconds=3.0))
    Path("tiles.yaml").write_text("configurations: [{distribution: [32, 32], vector: [8, 32, 1]}]")
    shape = ("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32")
    assert run("generator", *shape, "--configurations=tiles.yaml").status == 0
    assert run("compile", "-j1").status == 0
    once = ("--output=data.csv", "--benchmark-repetitions=5")
    assert run("profiler", *once).status == 0
    rows = [json.loads(line) for line in Path("data.jsonl").read_text().splitlines()]
    (default,) = (row["measurement"] for row in rows if row["configuration"] == "tile_config_default")
    (tiles,) = (row["measurement"] for row in rows if row["configuration"] != "tile_config_default")
    default["samples_ms"] = [20.0 * max(tiles["samples_ms"])] * len(default["samples_ms"])
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    outcome = run("profiler", *once, "--resume", "--confirm", "--format=table").checked()
    (found,) = (record.confirmed for record in read_records(Path("data.jsonl")) if record.confirmed)
    assert found.outcome in ("faster", "slower", "same", "unclear"), found.reason
    assert found.speed is None or found.speed < 10.0
    assert found.text in outcome.out


@pytest.mark.parametrize("option", ["--profiling-enabled=false", "--mode=cold"])
def test_what_cannot_be_confirmed_is_rejected_before_anything_runs(run, null_tree, option):
    null_tree()
    assert "--confirm" in run("profiler", "--confirm", option).checked(2).err


def test_results_that_were_verified_before_are_not_compared_again(two_trees, monkeypatch):
    """A wrong result is compared, and found, every time."""
    two_trees('"*": {time_ms: 1.0}', '"*_default": {fault: wrong_element}\n"*": {time_ms: 0.9}')
    checked: list[Expected] = []
    whole = device_worker.check

    def check(expected, arrays):
        checked.append(expected)
        return whole(expected, arrays)

    monkeypatch.setattr(device_worker, "check", check)
    sides = [
        {
            each.dispatch.name: each
            for each in TreeCandidates(made).candidates(load_manifest(made).dispatches())
        }
        for made in (Tree(Path("base")), Tree(Path("new")))
    ]
    names = [name for name in sides[0] if name.endswith(("_default", "_ukernels"))]
    hashes, found = VerifiedHashes(), []
    for _ in range(2):
        checked.clear()
        with live.CandidateComparison(live.LiveOptions("null"), hashes) as comparison:
            pairs = comparison.compared((sides[0][name], sides[1][name]) for name in names)
            found.append([each.outcome for each in pairs])
    assert found[0] == found[1] and len(set(found[0])) == 2
    assert len(checked) == 1
