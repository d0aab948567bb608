"""`tune`: a workload becomes a library in one command, and a library is measured again."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ran import Ran, Run

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import FAILED, INTERRUPTED, SUCCESS, USAGE
from dispatch_profiler.configurations import CpuTiles, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.compare.live import LiveComparison
from dispatch_profiler.profiler.compare.pairing import Pair
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.records.record import Provenance
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
    assert "[Benchmark]: SSS_NN_0: kept: " in ran.err


def test_tuning_again_measures_no_candidate_again(tuned):
    again = tuned(*TUNED)
    assert again.status == SUCCESS and configurations() == {PRODUCT.name: WINNER.name}
    assert "[Compiling]" not in again.err and "[Profiling]" not in again.err
    assert f"[Benchmark]: measured {PRODUCT.name}_tile_config_tuned: SUCCESS, 0.25 ms  [" in again.err


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
    assert shown == [
        f"[Recheck]: compiled {PRODUCT.name}  [1 of 2]",
        f"[Recheck]: compiled {PRODUCT.name} (tuned)  [2 of 2]",
        f"[Recheck]: measured {PRODUCT.name}_tile_config_default: SUCCESS, 0.5 ms  [1 of 2]",
        f"[Recheck]: measured {PRODUCT.name}_tile_config_tuned: SUCCESS, 0.25 ms  [2 of 2]",
        f"[Recheck]: comparing {PRODUCT.name} for at most 90 s",
        f"[Still faster]: {PRODUCT.name}: kept: {WINNER.name}, 2.00 times as fast (2.00-2.00)  [1 of 1]",
    ]


def test_nothing_is_compiled_for_a_device_that_does_not_open(tuned, monkeypatch):
    def fail(self: Evaluator) -> None:
        raise TargetError("no device 'null' on this machine")

    monkeypatch.setattr(Evaluator, "check_device", fail)
    ran = tuned("--recheck", "tuned/final")
    assert ran.status == USAGE and "no device 'null'" in ran.err and "compiled" not in ran.err


def test_an_interrupted_recheck_says_what_was_measured(tuned, monkeypatch):
    """Ctrl-C comes when the second of two entries is compared."""
    other = Dispatch(Matmul(16, 32, 16), WINNER)
    (entry,) = Library.load(Path("tuned/final")).entries
    Library([entry, replace(entry, dispatch=other)]).save(Path("two"))
    pairs, calls = LiveComparison.pairs, itertools.count()

    def pressed(self: LiveComparison, matched: Iterable[Any]) -> Iterator[Pair]:
        if next(calls):
            raise KeyboardInterrupt
        return pairs(self, matched)

    monkeypatch.setattr(LiveComparison, "pairs", pressed)
    ran = tuned("--recheck", "two", faults={other.name: {"time_ms": 0.25}, **TIMES})
    assert ran.status == INTERRUPTED and f"[Still faster]: {other.operation.name}: kept: " in ran.err
    assert ran.err.endswith(
        "interrupted; measured 1 of 2 entries of two, still faster: 1; the library is unchanged\n"
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
        ((), "expected a workload to tune, or --recheck and a library to measure again"),
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
            "--output_dir, --strategy, --evaluations, --cluster cannot be combined with --recheck",
        ),
        (("nothing.yaml",), "nothing.yaml"),
        (("log.yaml", "-o", "log.yaml"), "--output_dir: log.yaml is a file"),
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

    ran = command("tune", "-j1", *TUNED, "--evaluations=4", "--library=known", "--packed-weights")

    assert ran.status == SUCCESS
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
