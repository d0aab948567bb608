"""Which operations scripts/build_library.py tunes, in which order, and how it continues."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from script_helpers import ROOT, load_script

from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.cli import installed_revision
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul, Operation
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry, read_workload, write_workload

build = load_script("scripts/build_library.py")
CPU = parse_target("llvm-cpu")
SMALL, LARGE = Matmul(16, 16, 16), Matmul(512, 512, 512)


def workload(*counts: tuple[Operation, int]) -> Workload:
    return Workload(tuple(WorkloadEntry(operation, count) for operation, count in counts))


def problems(*values: tuple[Operation, float]):
    return [build.Problem(operation, 1, value) for operation, value in values]


def entry(
    operation: Operation, target: str = "llvm-cpu", threads: int = 2, compiler: str = "3.13.0"
) -> Entry:
    provenance = Provenance("local-task", target, f"compiler {compiler}, runtime {compiler}", seed=0)
    machine = replace(provenance.machine, threads=threads, cpu_level="x86-64-v4")
    one = Estimate(1.0, 1.0, 1.0)
    dispatch = Dispatch(operation, CpuTiles((8, 16), (8, 16, 4)))
    return Entry(dispatch, one, one, replace(provenance, machine=machine))


def test_an_operation_of_several_models_is_one_problem_with_all_its_runs():
    found = build.problems_of([workload((SMALL, 3), (LARGE, 1)), workload((SMALL, 2))], CPU)

    assert {each.operation: each.count for each in found} == {SMALL: 5, LARGE: 1}
    assert sum(each.value for each in found) == pytest.approx(2.0)  # each model counts once


def test_the_most_valuable_problem_is_first_whether_it_is_long_or_runs_often():
    assert build.problems_of([workload((SMALL, 1), (LARGE, 1))], CPU)[0].operation == LARGE
    assert build.problems_of([workload((LARGE, 1), (SMALL, 10**7))], CPU)[0].operation == SMALL
    # A large model does not hide the operations of small ones: the small one is all of three models.
    models = [workload((LARGE, 1)), *[workload((SMALL, 1))] * 3]
    assert build.problems_of(models, CPU)[0].operation == SMALL


def test_parts_share_the_operations_and_keep_groups_together():
    biased = Matmul(16, 16, 16, epilogue=Epilogue.parse("bias"))
    every = problems((LARGE, 3.0), (SMALL, 2.0), (Matmul(8, 8, 8), 1.0), (biased, 0.5))
    parts = [build.Part.parse(text).choose(every) for text in ("1/2", "2/2")]

    assert [[each.operation for each in part] for part in parts] == [
        [LARGE, Matmul(8, 8, 8)],
        [SMALL, biased],
    ]
    assert build.Part().choose(every) == every


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "1/2/3", "-1/2"])
def test_a_part_that_does_not_exist_is_rejected(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a part such as 1/2"):
        build.Part.parse(text)


def test_on_nvidia_gpus_what_has_no_triton_kernel_is_last():
    depthwise = Conv2d(32, 56, 56, 64, 64, 3, 3, groups=64)
    models = [workload((depthwise, 10**6), (SMALL, 1))]
    gpu = build.problems_of(models, parse_target("cuda:sm_90"))

    assert build.problems_of(models, CPU)[0].operation == depthwise
    assert [(each.operation, each.is_promising) for each in gpu] == [(SMALL, True), (depthwise, False)]
    assert [each.operation for each in build.first_slice(gpu, 1)] == [SMALL]


def test_only_entries_for_the_same_target_threads_and_compiler_count():
    target, hardware = parse_target("llvm-cpu"), Hardware("x86-64-v4", 2)
    others = [Matmul(8, 8, each) for each in (8, 16, 24)]
    library = Library(
        [
            entry(SMALL),
            entry(others[0], threads=16),
            entry(others[1], target="llvm-cpu:znver4"),
            entry(others[2], compiler="3.12.0"),
        ]
    )

    assert build.entries_for(library, target, hardware, "3.13.0") == {SMALL}


def test_what_is_known_is_not_left():
    every = problems((LARGE, 2.0), (SMALL, 1.0))
    assert build.remaining(every, {LARGE}) == every[1:]
    assert build.remaining(every, set()) == every


def test_a_slice_has_whole_groups_of_operations_that_differ_in_their_epilogues():
    relu = replace(SMALL, epilogue=Epilogue.parse("relu"))
    middle = Matmul(64, 64, 64)
    every = problems((LARGE, 1.0), (middle, 0.7), (SMALL, 0.6), (relu, 0.6))

    assert [each.operation for each in build.first_slice(every, 3)] == [SMALL, relu, LARGE]
    assert [each.operation for each in build.first_slice(every, 1)] == [SMALL, relu]
    assert len(build.first_slice(every, 9)) == 4


def test_what_is_tuned_quickly_precedes_what_is_worth_more_and_takes_much_longer():
    huge = Matmul(128, 14336, 4096)  # 15 GFLOP
    every = problems((huge, 0.9), (SMALL, 0.3), (LARGE, 0.1))

    assert [each.operation for each in build.first_slice(every, 2)] == [SMALL, huge]


def test_a_slice_has_as_many_problems_as_fit_into_the_time():
    assert build.fitting(60.0, None) == build.FIRST
    assert build.fitting(100.0, 10.0) == 8
    assert build.fitting(11.0, 10.0) == 0
    assert build.fitting(1e6, 1.0) == build.MOST


def test_a_stopped_slice_gives_what_it_has_confirmed_and_is_continued(tmp_path: Path):
    models = tmp_path / "models"
    models.mkdir()
    write_workload(workload((SMALL, 1), (LARGE, 1)), models / "one.yaml")
    target = parse_target("null")
    made = build.Build(tmp_path / "state", target, Hardware.here(target), models)
    folder = made.slice(made.left(), 2)
    confirmed = entry(SMALL, target="null", compiler=installed_revision("null"))
    Library([confirmed]).save(folder / "final")

    assert made.take_over(folder) == 1
    assert [each.operation for each in made.left()] == [LARGE]
    assert made.slice(made.left(), 2) == folder
    made.finish(folder)
    assert not made.left()


def test_what_was_tuned_is_kept_in_the_shipped_library_and_not_tuned_again(tmp_path: Path):
    """Also on another machine, and what has no entry because nothing is faster."""
    models, target = tmp_path / "models", parse_target("null")
    models.mkdir()
    write_workload(workload((SMALL, 1), (LARGE, 1), (Matmul(8, 8, 8), 1)), models / "one.yaml")
    made = build.Build(tmp_path / "state", target, Hardware.here(target), models)
    made.shipped = tmp_path / "shipped"
    revision = installed_revision("null")
    Library([entry(Matmul(4, 4, 4), target="null", compiler=revision)]).save(made.shipped)
    with pytest.raises(SystemExit, match="has nothing to keep"):
        made.keep()
    Library([entry(SMALL, target="null", compiler=revision)]).save(made.state / "library")
    write_workload(workload((SMALL, 1), (LARGE, 1)), made.state / "done.yaml")

    assert made.keep() == (1, 2)
    assert made.keep() == (0, 0)
    assert {each.operation for each in Library.load(made.shipped).entries} == {SMALL, Matmul(4, 4, 4)}
    elsewhere = build.Build(tmp_path / "other", target, Hardware.here(target), models)
    assert [each.operation for each in elsewhere.left()] == [Matmul(8, 8, 8)]


@pytest.mark.parametrize("use", sorted(each.name for each in build.WORKLOADS.iterdir()))
def test_the_operations_of_models_are_there_to_tune(use: str):
    files = sorted((build.WORKLOADS / use).glob("*.yaml"))
    assert files
    assert build.problems_of([read_workload(files[0]).workload], CPU)


@pytest.mark.slow
def test_the_next_call_goes_on_where_the_last_one_was_stopped(tmp_path: Path, capsys):
    """With times from a file."""
    models, state = tmp_path / "models", tmp_path / "state"
    models.mkdir()
    fast = Matmul(16, 32, 8)
    write_workload(workload((fast, 6)), models / "one.yaml")
    write_workload(workload((Matmul(64, 32, 8), 2)), models / "two.yaml")
    target = f"--target=null:{ROOT / 'docs' / 'times.yaml'}"
    names = [str(state), target, f"--workloads={models}"]

    assert build.main(["tune", *names, "--time=0.1s"]) == 0
    assert "was stopped, 0 entries confirmed" in capsys.readouterr().out
    assert not (state / "done.yaml").exists()

    assert build.main(["tune", *names, "--time=5m"]) == 0
    assert "left: 0 of 2 operations" in capsys.readouterr().out
    assert [each.operation for each in Library.load(state / "library").entries] == [fast]
    assert len(list((state / "slices").iterdir())) == 1

    assert build.main(["tune", *names, "--time=5m"]) == 0  # nothing is left
    assert len(list((state / "slices").iterdir())) == 1


@pytest.mark.slow
def test_sigterm_stops_the_search_as_ctrl_c_does(tmp_path: Path):
    models, state = tmp_path / "models", tmp_path / "state"
    models.mkdir()
    write_workload(workload((SMALL, 1)), models / "one.yaml")
    arguments = [str(state), "--target=null", f"--workloads={models}", "--time=5m", "--evaluations=200"]
    command = [sys.executable, str(ROOT / "scripts" / "build_library.py"), "tune", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "[Searching]" in line)
        process.terminate()
        rest = process.stdout.read()  # until the search has ended, too

    assert process.returncode == 0
    assert "was stopped" in rest and (state / "search.db").exists()
    assert not (state / "done.yaml").exists()
