"""`tune` turns a workload into a library; `library prove` makes it one of the installed compiler."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ran import Ran, Run
from terminal_helpers import on_a_terminal, plain

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import FAILED, INTERRUPTED, SUCCESS, USAGE
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.configurations import CpuTiles, Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.library import Entry, Estimate, KeepRule, Library
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.profiler.compare.live import CandidateComparison
from dispatch_profiler.profiler.compare.pairing import Pair
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.paired_sampling import PairLimit
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.commands import tune_cli
from dispatch_profiler.tuner.results.finalists import Benchmark
from dispatch_profiler.tuner.tunings.problems import read_summary
from dispatch_profiler.tuner.tunings.tuning_file import read_tuning
from dispatch_profiler.workloads import Workload, WorkloadEntry, write_workload

PRODUCT, CONV = Matmul(16, 32, 8), Conv2d(1, 8, 8, 4, 4, 3, 3)
#: Of the shipped list, hence among the seeds.
WINNER = CpuTiles((16, 64), (4, 16, 1))
FAST = Dispatch(PRODUCT, WINNER).name

TUNED = ("log.yaml", "--target=null:faults.yaml", "--evaluations=10", "--strategy=random")

Faults = dict[str, dict[str, object]]
TIMES: Faults = {FAST: {"time_ms": 0.25}, "*_default": {"time_ms": 0.5}, "*": {"time_ms": 1.0}}


pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture
def tune(command: Run) -> Run:
    """`tune("log.yaml", faults={...})`"""

    def call(*arguments: str, faults: Faults = TIMES) -> Ran:
        Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))
        write_workload(Workload((WorkloadEntry(PRODUCT, 6), WorkloadEntry(CONV, 2))), Path("log.yaml"))
        return command("tune", "-j1", *arguments)

    return call


@pytest.fixture
def tuned(tune: Run, made_once: Callable[[str, Callable[[Path], None]], Path]) -> Run:
    """`tune`, and what it made of the workload: a library with one entry in `tuned/final`."""

    def make(folder: Path) -> None:
        assert tune(*TUNED).status == SUCCESS
        Path("tuned").rename(folder)

    shutil.copytree(made_once("tuned", make), "tuned")
    return tune


@pytest.mark.parametrize(("module", "options"), [("optuna", ()), ("sklearn", ("--strategy=surrogate",))])
def test_a_missing_package_is_reported_before_anything_is_profiled(tune, monkeypatch, module, options):
    monkeypatch.setitem(sys.modules, module, None)
    ran = tune("log.yaml", "--target=null:faults.yaml", *options)
    assert ran.status == USAGE
    assert "python -m pip install" in ran.err and "[Profiling]" not in ran.err
    assert not Path("tuned").exists()


def configurations() -> dict[str, str]:
    entries = Library.load(Path("tuned/final")).entries
    return {each.operation.name: each.dispatch.configuration.name for each in entries}


def test_a_workload_of_several_kinds_becomes_a_library(tune):
    """Everything is in one folder; the uplift is that of the workload."""
    ran = tune("log.yaml", "--target=null:faults.yaml", "--evaluations=10", "--seed=3", "-o", "mine")
    assert ran.status == SUCCESS
    assert {path.name for path in Path("mine").iterdir()} == {"tunings", "results", "final"}
    (entry,) = Library.load(Path("mine/final")).entries
    assert (entry.operation, entry.dispatch.configuration) == (PRODUCT, WINNER)
    assert re.search(
        r"Weighted total uplift: 60.0 % \(.*\); the kept problems are 75.0 % of the time", ran.out
    )
    assert "[Benchmark]: SSS_NN_0, matmul 16x32x8: kept: " in ran.err


@pytest.mark.slow
def test_tuning_again_measures_no_candidate_again(tuned):
    again = tuned(*TUNED)
    assert again.status == SUCCESS and configurations() == {PRODUCT.name: WINNER.name}
    assert "[Searching]" not in again.err and "[Profiling]" not in again.err
    assert f"[Benchmark]: measured {PRODUCT.name}_tile_config_tuned: SUCCESS, 0.25 ms  [" in again.err


def test_shares_come_from_the_search_if_all_operations_are_searched(tuned):
    """Nothing is profiled before; with a threshold, everything is."""
    shares = {each.problem: each.percent for each in read_summary(Path("tuned/tunings/summary.csv"))}
    assert shares == {"SSS_NN_0": pytest.approx(75.0), "CONV2D_SSS_0": pytest.approx(25.0)}
    assert read_tuning(Path("tuned/tunings/SSS_NN_0.yaml")).share == pytest.approx(75.0)
    assert not Path("tuned/tunings/untuned.jsonl").exists()
    again = tuned(*TUNED, "--thr=30")
    assert again.err.count("[Profiling]") == 2 and not Path("tuned/tunings/CONV2D_SSS_0.yaml").exists()


def test_problems_that_a_short_time_leaves_out_stay_in_the_summary(tune, monkeypatch):
    """With their counts and tuning files; a longer time continues with them."""
    monkeypatch.setattr(tune_cli, "finish_tunings", lambda *_: None)  # the benchmark
    assert tune(*TUNED, "--time=1s").status == SUCCESS
    found = {each.problem: each for each in read_summary(Path("tuned/tunings/summary.csv"))}
    left_out = found["CONV2D_SSS_0"]
    assert (left_out.count, left_out.percent, left_out.is_kept) == (2, None, True)
    assert found["SSS_NN_0"].percent == pytest.approx(100.0)
    assert "not searched, for lack of time" in Path("tuned/tunings/summary.csv").read_text()
    assert Path("tuned/tunings/CONV2D_SSS_0.yaml").exists()


def test_an_operation_whose_untuned_configurations_are_wrong_has_no_share(tune):
    ran = tune(*TUNED, faults={f"{CONV.name}_tile_config_default": {"fault": "wrong_element"}, **TIMES})
    assert ran.status == FAILED and configurations() == {PRODUCT.name: WINNER.name}
    assert f"CONV2D_SSS_0 ({short_name(CONV)}): no untuned configuration is correct (FAILED: " in ran.err
    found = {each.problem: each for each in read_summary(Path("tuned/tunings/summary.csv"))}
    assert (found["CONV2D_SSS_0"].percent, found["CONV2D_SSS_0"].is_kept) == (None, False)
    assert found["SSS_NN_0"].percent == pytest.approx(100.0)


def test_nothing_is_tuned_on_a_device_that_does_not_open(tune, monkeypatch):
    def fail(self: Evaluator) -> None:
        raise TargetError("no device 'null' on this machine")

    monkeypatch.setattr(Evaluator, "check_device", fail)
    ran = tune(*TUNED)
    assert ran.status == USAGE and not Path("tuned/final").exists()
    assert ran.err.endswith("\ndispatch-profiler tune: error: no device 'null' on this machine\n")


@pytest.mark.slow
def test_operations_below_the_threshold_are_not_tuned(tune):
    ran = tune("log.yaml", "--target=null:faults.yaml", "--evaluations=2", "--thr=30")
    assert ran.status == SUCCESS
    assert [path.name for path in Path("tuned/tunings").glob("*.yaml")] == ["SSS_NN_0.yaml"]


def test_a_library_that_holds(tuned):
    ran = tuned("--recheck", "tuned/final")
    assert (ran.status, ran.out) == (SUCCESS, "")
    assert f"[Still faster]: {PRODUCT.name}: kept: {WINNER.name}, 2.00 times as fast" in ran.err
    assert "Still faster: 1 of 1 entry of tuned/final\n" in ran.err
    assert configurations() == {PRODUCT.name: WINNER.name}


def test_each_step_of_a_recheck_is_shown(tuned):
    """A terminal is not required."""
    shown = [line for line in tuned("--recheck", "tuned/final").err.splitlines() if line.startswith("[")]
    compiled = [line.split("  ")[0] for line in shown[:2]]  # the larger source first
    assert sorted(compiled) == [
        f"[Recheck]: compiled {PRODUCT.name}_tile_config_default",
        f"[Recheck]: compiled {PRODUCT.name}_tile_config_tuned",
    ]
    assert shown[2:] == [
        f"[Recheck]: measured {PRODUCT.name}_tile_config_default: SUCCESS, 0.5 ms  [1 of 2]",
        f"[Recheck]: measured {PRODUCT.name}_tile_config_tuned: SUCCESS, 0.25 ms  [2 of 2]",
        "[Recheck]: comparing matmul 16x32x8 for at most 90 s",
        f"[Still faster]: {PRODUCT.name}: kept: {WINNER.name}, 2.00 times as fast (2.00-2.00)  [1 of 1]",
    ]


def test_nothing_is_compiled_for_a_device_that_does_not_open(tuned, monkeypatch):
    def fail(self: Evaluator) -> None:
        raise TargetError("no device 'null' on this machine")

    monkeypatch.setattr(Evaluator, "check_device", fail)
    ran = tuned("--recheck", "tuned/final")
    assert ran.status == USAGE and "no device 'null'" in ran.err and "compiled" not in ran.err


def test_kernels_with_fewer_threads_than_cores_are_tuned_on_as_many_cores(tune):
    """The library is for one thread. Afterwards, the process may use all of its cores again."""
    before = os.sched_getaffinity(0)
    ran = tune(*TUNED, "--threads=1")
    assert ran.status == SUCCESS and os.sched_getaffinity(0) == before
    (entry,) = Library.load(Path("tuned/final")).entries
    assert entry.dispatch.name == FAST
    records = read_records(Path("tuned/tunings/search.jsonl"))
    assert {record.provenance.machine.threads for record in records} == {1}
    again = tune("--recheck", "tuned/final", "--threads=1")
    assert again.status == SUCCESS and "Still faster: 1 of 1 entry" in again.err


def test_more_threads_than_cores(tune):
    ran = tune(*TUNED, "--threads=100000")
    assert ran.status == USAGE and "--threads: this process may use" in ran.err


def test_an_interrupted_recheck_says_what_was_measured(tuned, monkeypatch):
    """Ctrl-C comes when the second of two entries is compared."""
    other = Dispatch(Matmul(16, 32, 16), WINNER)
    (entry,) = Library.load(Path("tuned/final")).entries
    Library([entry, replace(entry, dispatch=other)]).save(Path("two"))
    compared, calls = CandidateComparison.compared, itertools.count()

    def pressed(self: CandidateComparison, matched: Iterable[Any], limit: PairLimit) -> Iterator[Pair]:
        if next(calls):
            raise KeyboardInterrupt
        return compared(self, matched, limit)

    monkeypatch.setattr(CandidateComparison, "compared", pressed)
    ran = tuned("--recheck", "two", faults={other.name: {"time_ms": 0.25}, **TIMES})
    assert ran.status == INTERRUPTED and f"[Still faster]: {other.operation.name}: kept: " in ran.err
    assert ran.err.endswith(
        "interrupted; measured 1 of 2 entries of two, still faster: 1; the library is unchanged\n"
    )


def test_beside_a_damaged_entry_the_others_are_measured_again(tuned, command):
    """The status says that not all hold."""
    (entry,) = Library.load(Path("tuned/final")).entries
    other = replace(entry, dispatch=Dispatch(Matmul(16, 32, 16), WINNER))
    Library([entry, other]).save(Path("two"))
    (file,) = Path("two").glob("*/*.json")
    file.write_text(file.read_text().replace(f'"name": "{other.operation.name}"', '"name": "another"'))
    ran = tuned("--recheck", "two")
    assert ran.status == FAILED and "Still faster: 1 of 1 entry of two\n" in ran.err
    assert "1 damaged entry of two cannot be measured; dispatch-profiler library check two names" in ran.err
    checked = command("library", "check", "two", "--recheck")
    assert checked.status == FAILED and "name: expected" in checked.out
    assert "Still faster: 1 of 1 entry of two\n" in checked.err


@pytest.fixture
def mixed(tuned) -> Path:
    """A library with the tuned entry and one for a GPU."""
    (entry,) = Library.load(Path("tuned/final")).entries
    of_gpu = replace(
        entry,
        dispatch=Dispatch(Matmul(16, 32, 16), Default()),
        provenance=replace(entry.provenance, device="cuda", target="cuda:sm_90"),
    )
    Library([of_gpu, entry]).save(Path("mixed"))
    return Path("mixed")


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Drivers of devices that do not open."""
    drivers: set[str] = {"cuda"}
    measured_again = tune_cli.measured_again

    def measured(entries: Sequence[Entry], benchmark: Benchmark, rule: KeepRule) -> Iterator[Any]:
        if benchmark.evaluator.device in drivers:
            raise TargetError(f"no {benchmark.evaluator.device} here")
        yield from measured_again(entries, benchmark, rule)

    monkeypatch.setattr(tune_cli, "measured_again", measured)
    return drivers


def test_of_a_library_for_several_targets_what_can_be_measured_here_is(tuned, mixed, unopened):
    """The others are named, and do not count. If none can be measured, the reason is an error."""
    ran = tuned("--recheck", str(mixed))
    assert ran.status == SUCCESS and "Still faster: 1 of 1 entry of mixed\n" in ran.err
    assert "1 entry for cuda:sm_90 cannot be measured here: no cuda here" in ran.err
    unopened.add("null")
    none = tuned("--recheck", str(mixed))
    assert none.status == USAGE and "error: no " in none.err


def test_a_target_chooses_among_those_of_a_library(tuned, mixed, unopened):
    ran = tuned("--recheck", str(mixed), "--target=null:faults.yaml")
    assert ran.status == SUCCESS and "cuda" not in ran.err
    ran = tuned("--recheck", str(mixed), "--target=vulkan-spirv")
    assert (
        ran.status == USAGE and "the library is for cuda:sm_90, null:faults.yaml, not for vulkan" in ran.err
    )


@pytest.mark.parametrize(
    ("fault", "judgement"),
    [
        ({"time_ms": 0.75}, "slower"),
        ({"fault": "wrong_element", "time_ms": 0.01}, "incorrect"),
        ({"not_compiled": "no such tile"}, "not compiled"),
    ],
)
def test_an_entry_that_no_longer_holds_is_listed(tuned, fault, judgement):
    """The compiler is another one by now: the output names the command that makes the library one of it."""
    ran = tuned("--recheck", "tuned/final", faults={**TIMES, FAST: fault})
    assert ran.status == FAILED
    assert ran.out.startswith(f"{PRODUCT.name}: {judgement}: {WINNER.name}: ")
    assert "Still faster: 0 of 1 entry of tuned/final\n" in ran.err
    assert "hint: 1 entry for null:faults.yaml measured with" in ran.err
    assert "dispatch-profiler library prove tuned/final\n" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a model or a workload to tune, or --recheck and a library to measure again"),
        (("log.yaml", "--recheck", "tuned/final"), "a workload and --recheck exclude each other"),
        (("--recheck", "empty"), "--recheck: the library has no entries"),
        (("--recheck", "damaged"), "not a library"),
        (("--recheck", "tuned/final", "--target=llvm-cpu"), "the library is for null:faults.yaml"),
        (
            (
                "--recheck",
                "empty",
                "--evaluations=5",
                "--strategy=random",
                "-o",
                "mine",
                "--cluster=tcp://x:1",
            ),
            "--output, --strategy, --evaluations, --cluster cannot be combined with --recheck",
        ),
        (("nothing.yaml",), "nothing.yaml"),
        (("log.yaml", "-o", "log.yaml"), "--output: log.yaml is a file"),
        (("log.yaml", "--target=null:faults.yaml", "--seed=-1"), "expected a whole number from 0"),
        (("log.yaml", "--target=null:faults.yaml", "--device=cuda://9"), "cuda"),
    ],
)
def test_what_is_wrong_is_named(tune, arguments, message, request):
    Library().save(Path("empty"))
    Path("damaged").mkdir()
    Path("damaged/library.json").write_text("{}")
    if "tuned/final" in arguments and "--target=llvm-cpu" in arguments:
        request.getfixturevalue("tuned")
    ran = tune(*arguments)
    assert ran.status == USAGE and message in ran.err


@pytest.mark.slow
def test_tuning_a_product_with_iree():
    """What is kept was the fastest in the search, and is measured again in another process.

    Whether anything is faster depends on the machine.
    """
    write_workload(Workload((WorkloadEntry(Matmul(64, 64, 64)),)), Path("log.yaml"))
    assert main(["tune", "log.yaml", "--evaluations=4"]) == SUCCESS
    winners, final = (Library.load(Path(f"tuned/{each}")) for each in ("results/winners", "final"))
    dispatches = [entry.dispatch for entry in winners.entries]
    assert all(entry.dispatch in dispatches and entry.speedup.low > 1.0 for entry in final.entries)
    winners_path = "tuned/results/winners"
    if len(winners):
        arguments = [sys.executable, "-m", "dispatch_profiler", "tune", "--recheck", winners_path]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        lost = len(done.stdout.splitlines())
        assert done.returncode == (FAILED if lost else SUCCESS)
        assert f"Still faster: {len(winners) - lost} of {len(winners)} " in done.stderr


LINEAR = Matmul(16, 32, 8, rhs_layout="n")
PACKED_TIMES: Faults = {
    "*_packed_*": {"time_ms": 0.1}, "*_default": {"time_ms": 0.5}, "*": {"time_ms": 0.4}
}  # fmt: skip


def test_weights_that_are_constants_are_packed(command):
    """The search, the library compiled from its file, and the comparison all have the packed weight."""
    Path("faults.yaml").write_text(yaml.safe_dump(PACKED_TIMES, sort_keys=False))
    write_workload(Workload((WorkloadEntry(LINEAR),)), Path("log.yaml"))

    winner = Dispatch(LINEAR, Formed("permuted", packed=True))
    speed = Estimate(2.0, 1.9, 2.1)
    Library([Entry(winner, speed, speed, Provenance("null", "null", "compiler x", 7))]).save(Path("known"))

    ran = command("tune", "-j1", *TUNED, "--evaluations=4", "--library=known", "--packed-weights").checked()
    (entry,) = Library.load(Path("tuned/final")).entries
    assert entry.dispatch == winner
    assert entry.speedup.value == pytest.approx(4.0, rel=0.1)
    assert "its weight is packed at load time" in ran.err
    assert "1 entry of 1 with weights packed at load time" in ran.err


@pytest.mark.slow
def test_both_kinds_of_entries_are_rechecked(tuned):
    """Each is compiled from a library of its own kind: the packed one is 0.2 ms."""
    (entry,) = Library.load(Path("tuned/final")).entries
    packed = Dispatch(LINEAR, Formed("permuted", packed=True))
    plain = Dispatch(LINEAR, WINNER)
    Library([entry, replace(entry, dispatch=packed), replace(entry, dispatch=plain)]).save(Path("three"))
    faults: Faults = {"*_packed_*": {"time_ms": 0.2}, FAST: {"time_ms": 0.25}, **TIMES}

    ran = tuned("--recheck", "three", "--target=null:faults.yaml", faults=faults)

    assert f"{LINEAR.name}: kept: {packed.configuration.name}" in ran.err
    assert f"{LINEAR.name}: slower: {WINNER.name}" in ran.out


TILES = CpuTiles((16, 64), (4, 16, 1))
PRODUCTS = [Matmul(16, 32, 8 * factor) for factor in (1, 2, 3)]
TARGET = "null:faults.yaml"
OLD = Provenance("null", TARGET, "compiler null 0, null", seed=7)
OF_OLD = [f"{each.name}_tile_config_16x64_4x16x1" for each in PRODUCTS]

FAST_NOW: Faults = {"*_tile_config_16x64_4x16x1": {"time_ms": 0.25}, "*": {"time_ms": 0.5}}


def entry(operation: Operation, provenance: Provenance = OLD) -> Entry:
    return Entry(Dispatch(operation, TILES), Estimate(3.0, 2.9, 3.1), Estimate(2.0, 1.9, 2.1), provenance)


@pytest.fixture
def prove(command: Run) -> Run:
    """`prove("old", faults={...})`: faults, by dispatch, make another null compiler."""

    def call(*arguments: str, faults: Faults = FAST_NOW) -> Ran:
        Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))
        return command("library", "prove", "-j1", *arguments)

    Library([entry(each) for each in PRODUCTS]).save(Path("old"))
    return call


def installed() -> str:
    return compiler_for(parse_target(TARGET)).revision


def of_this_compiler(path: str) -> dict[str, bool]:
    return {
        each.operation.name: each.is_of_compiler(installed()) for each in Library.load(Path(path)).entries
    }


def contents(path: str) -> dict[Path, bytes]:
    """What all files of a library have."""
    return {each: each.read_bytes() for each in Path(path).rglob("*.json")}


def dropped(path: str) -> dict[str, str]:
    rows = json.loads(Path(path, "dropped.json").read_text())["entries"]
    return {row["name"]: row["reason"] for row in rows}


def test_entries_that_hold_become_entries_of_this_compiler(prove):
    before = contents("old")
    ran = prove("old", "-o", "new")
    assert (ran.status, ran.out) == (SUCCESS, "")
    assert of_this_compiler("new") == {each.name: True for each in PRODUCTS}
    assert contents("old") == before
    found = Library.load(Path("new")).find(PRODUCTS[0])
    assert found is not None and found.dispatch == entry(PRODUCTS[0]).dispatch
    assert found.speedup.value == pytest.approx(2.0)
    # 2 M N K operations in the 0.25 ms of the null device.
    assert found.gflops.value == pytest.approx(PRODUCTS[0].flops / 0.25e-3 / 1e9)
    assert f"[Proven]: {PRODUCTS[0].name}: kept: {TILES.name}, 2.00 times as fast" in ran.err
    assert "GFLOP/s, recorded 3  [1 of 3]" in ran.err
    assert ran.err.endswith("Wrote 3 entries to new/library.json: 3 proven, 0 dropped, 0 undecided\n")


def test_without_an_output_the_library_itself_is_replaced(prove):
    assert prove("old").status == SUCCESS
    assert of_this_compiler("old") == {each.name: True for each in PRODUCTS}
    again = prove("old")
    assert again.status == SUCCESS and "no entry is left to prove for compiler null" in again.err


@pytest.mark.parametrize(
    ("fault", "judgement"),
    [
        ({"not_compiled": "no such tile"}, "not compiled: no such tile"),
        ({"not_applied": True}, "not applied: "),
        ({"fault": "wrong_element", "time_ms": 0.1}, "incorrect: "),
        ({"time_ms": 2.0}, "slower: its speedup is 0.250"),
    ],
)
def test_what_was_lost_is_printed_and_kept_beside_the_library(prove, fault, judgement):
    ran = prove("old", faults={OF_OLD[1]: fault, **FAST_NOW})
    assert ran.status == FAILED
    assert of_this_compiler("old") == {PRODUCTS[0].name: True, PRODUCTS[2].name: True}
    kind, _, reason = judgement.partition(": ")
    (line,) = ran.out.splitlines()
    assert line.startswith(f"dropped: {PRODUCTS[1].name}: {kind}: {TILES.name}: {reason}")
    assert list(dropped("old")) == [PRODUCTS[1].name]
    assert dropped("old")[PRODUCTS[1].name].startswith(judgement)
    assert "2 proven, 1 dropped, 0 undecided" in ran.err
    (row,) = json.loads(Path("old/dropped.json").read_text())["entries"]
    assert row["entry"]["configuration"] == TILES.to_dict() and row["compiler"] == installed()


def test_a_damaged_entry_is_dropped_and_the_others_are_proven(prove):
    (file,) = Path("old").glob("*/product.json")
    data = json.loads(file.read_text())
    name = data["entries"][1]["name"]
    data["entries"][1]["configuration"]["kind"] = "cpu_tile"
    file.write_text(json.dumps(data))
    ran = prove("old", "-o", "new")
    assert ran.status == FAILED
    assert ran.out.startswith(f"dropped: {file}, entry 2 ({name}): ")
    assert set(of_this_compiler("new")) == {each.name for each in PRODUCTS} - {name}
    assert "2 proven, 1 dropped" in ran.err
    (row,) = json.loads(Path("new/dropped.json").read_text())["entries"]
    assert row["name"] == name and row["entry"] == data["entries"][1]
    assert "no entry is left" in prove("old", "-o", "new").err


def test_a_library_of_damaged_entries_alone_is_not_called_empty(prove):
    (file,) = Path("old").glob("*/product.json")
    data = json.loads(file.read_text())
    for each in data["entries"]:
        each["configuration"]["kind"] = "cpu_tile"
    file.write_text(json.dumps(data))
    ran = prove("old", "-o", "new")
    assert (
        ran.status == USAGE
        and f"all entries of the library are damaged; the first: {file}, entry 1" in ran.err
    )


def test_a_damaged_file_is_not_dropped(prove):
    """What it had is unknown."""
    (file,) = Path("old").glob("*/product.json")
    file.write_text("{")
    ran = prove("old")
    assert ran.status == USAGE and f"{file}: not a library (not JSON" in ran.err
    assert file.read_text() == "{" and not Path("old/dropped.json").exists()


def test_an_entry_that_is_as_fast_as_the_default_stays(prove):
    """Nothing is slower because of it."""
    assert prove("old", faults={"*": {"time_ms": 0.5}}).status == SUCCESS
    assert all(of_this_compiler("old").values())


@pytest.mark.parametrize(
    ("fault", "judgement"),
    [
        ({"fault": "clock_zero"}, "not compared"),
        pytest.param({"fault": "crash"}, "crashed", marks=pytest.mark.slow),
        pytest.param({"compiler": "crash"}, "not compiled", marks=pytest.mark.slow),
    ],
)
def test_what_is_undecided_is_tried_again(prove, fault, judgement):
    """A crash may have had another cause: the entry stays, for its own compiler."""
    faults = {OF_OLD[0]: fault, **FAST_NOW}
    ran = prove("old", faults=faults)
    assert ran.status == FAILED and ran.out.startswith(f"undecided: {PRODUCTS[0].name}: {judgement}")
    assert of_this_compiler("old") == {
        PRODUCTS[0].name: False,
        PRODUCTS[1].name: True,
        PRODUCTS[2].name: True,
    }
    assert "Proving 1 entry of old" in prove("old", faults=faults).err


@pytest.mark.parametrize("output", ["old", "new"])
def test_an_interrupted_run_is_continued(prove, monkeypatch, output):
    """Ctrl-C comes when the second entry is compared."""
    compared, calls = CandidateComparison.compared, itertools.count()

    def pressed(self: CandidateComparison, matched: Iterable[Any], limit: PairLimit) -> Iterator[Pair]:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return compared(self, matched, limit)

    with monkeypatch.context() as patched:
        patched.setattr(CandidateComparison, "compared", pressed)
        ran = prove("old", "-o", output)
    assert ran.status == INTERRUPTED
    assert f"interrupted; proved 1 of 3 entries: decided entries are kept in {output}" in ran.err
    assert sum(of_this_compiler(output).values()) == 1
    continued = prove("old", "-o", output)
    assert continued.status == SUCCESS and "Proving 2 entries of old" in continued.err
    assert of_this_compiler(output) == {each.name: True for each in PRODUCTS}


def test_a_dropped_entry_is_not_tried_again_into_the_same_folder(prove):
    faults = {OF_OLD[1]: {"not_compiled": "no such tile"}, **FAST_NOW}
    assert prove("old", "-o", "new", faults=faults).status == FAILED
    again = prove("old", "-o", "new", faults=faults)
    assert "no entry is left" in again.err and list(dropped("new")) == [PRODUCTS[1].name]
    # Another compiler may have what this one lacks.
    assert prove("old", "-o", "newer").status == SUCCESS
    assert len(of_this_compiler("newer")) == 3


def test_entries_of_this_compiler_stay_as_they_are(prove):
    Path("faults.yaml").write_text(yaml.safe_dump(FAST_NOW, sort_keys=False))
    current = entry(Matmul(8, 8, 8), replace(OLD, iree=f"compiler {installed()}, null"))
    Library([entry(PRODUCTS[0]), current]).save(Path("mixed"))
    ran = prove("mixed", "-o", "new")
    assert ran.status == SUCCESS and "Proving 1 entry of mixed" in ran.err
    assert current in Library.load(Path("new")).entries

    Library([current]).save(Path("current"))
    ran = prove("current", "-o", "copy")
    assert ran.status == SUCCESS
    assert "no entry is left to prove" in ran.err and "wrote 1 entry to copy/library.json" in ran.err
    assert Library.load(Path("copy")).entries == (current,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("xeon-avx512",), "xeon-avx512 is a shipped library, which is not replaced"),
        (("missing",), "missing"),
        (("old", "-o", "other"), "--output: other has other entries, such as matmul_8x8x8"),
        (("old", "-o", "file"), "--output: file is a file"),
        (("file",), "file is a file, which is not replaced"),
        (("old", "-d", "cuda"), "--device: code for null does not run on cuda"),
        (("old", "-o", "damaged"), "dropped.json: expected"),
        (("old", "--target=cuda:sm_90"), "old: the library is for null:faults.yaml, not for cuda:sm_90"),
        (("empty",), "empty: the library has no entries"),
    ],
)
def test_what_cannot_be_proven_is_rejected(prove, arguments, message):
    Library([entry(Matmul(8, 8, 8))]).save(Path("other"))
    Library().save(Path("empty"))
    Path("file").touch()
    Path("damaged").mkdir()
    Path("damaged/dropped.json").write_text("{}")
    ran = prove(*arguments)
    assert ran.status == USAGE and message in ran.err and ran.out == ""


def test_it_comes_before_its_options(command: Callable[..., Ran]):
    ran = command("library", "--quiet", "prove", "old")
    assert ran.status == USAGE and "dispatch-profiler library prove LIBRARY" in ran.err
    with pytest.raises(SystemExit):
        command("library", "prove", "--help")


@pytest.mark.slow
def test_a_library_of_a_compiler_of_iree(command: Callable[..., Ran]):
    """Its speed here is not known, but it compiles, is applied, and is right."""
    old = Provenance("local-task", "llvm-cpu", "compiler 3.12.0, runtime 3.12.0", seed=7)
    tiled = Dispatch(Matmul(64, 96, 64), CpuTiles((32, 48), (8, 16, 4)))
    Library([replace(entry(PRODUCTS[0], old), dispatch=tiled)]).save(Path("real"))
    ran = command("library", "prove", "-j1", "real", "-o", "new")
    if ran.status == SUCCESS:
        (found,) = Library.load(Path("new")).entries
        assert found.is_of_compiler(compiler_for(parse_target("llvm-cpu")).revision)
        assert found.provenance.flags and found.provenance.module_key
    else:
        assert ran.out.startswith("dropped: matmul_64x96x64_f32t_f32t_f32t: slower: ")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 100])
def test_on_a_terminal_a_view_is_drawn(tmp_path: Path, columns: int):
    """No line is wider than the terminal; lines of a log are not printed."""
    Path("times.yaml").write_text('"*": {time_ms: 1.0}\n')
    write_workload(Workload((WorkloadEntry(PRODUCT), WorkloadEntry(CONV))), Path("log.yaml"))
    program = tmp_path / "run.py"
    program.write_text("import sys; from dispatch_profiler.__main__ import main; sys.exit(main())")
    status, shown = on_a_terminal(
        columns, str(program), "tune", "log.yaml", "--target=null:times.yaml", "--evaluations=6"
    )
    assert status == SUCCESS, shown
    drawn, _, _ = plain(shown).replace("\r", "\n").partition("Shares of the time")
    assert max(map(len, drawn.splitlines())) <= columns
    assert "Searching round 1: compiling" in plain(shown) and "[Searching]" not in shown
    assert "The fastest of 12 evaluations" in plain(shown)
