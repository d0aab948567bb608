"""`gen_configs` as its users meet it: a log becomes tuning files, scripts and a summary."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import FAILED, SUCCESS, USAGE
from dispatch_profiler.configurations import WinogradMicrokernel
from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.commands.arguments import parse_architecture
from dispatch_profiler.tuner.tunings.problems import RECORDS_FILE, read_summary, untuned
from dispatch_profiler.tuner.tunings.tuning_file import read_tuning, read_tunings
from dispatch_profiler.workloads import Workload, WorkloadEntry, write_workload

SHARED = Path(__file__).parents[3] / "benchmarks" / "workloads"
DAMAGED = Path(__file__).parents[2] / "workloads" / "gemm_log_damaged.yaml"
SMALL, LARGE, CONV = Matmul(16, 32, 8), Matmul(64, 32, 8), Conv2d(1, 8, 8, 4, 4, 3, 3)
WORKLOAD = Workload((WorkloadEntry(SMALL, 6), WorkloadEntry(LARGE, 30), WorkloadEntry(CONV, 1)))
#: 60, 30 and 10 % of the time.
TIMES = {f"{SMALL.name}_*": 10.0, f"{LARGE.name}_*": 1.0, f"{CONV.name}_*": 10.0}


@pytest.fixture(autouse=True)
def quick_workers(request: pytest.FixtureRequest) -> None:
    """No worker processes, except where IREE compiles: several threads would use it in one process."""
    if request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("in_process")


class Ran:
    def __init__(self, status: int, err: str) -> None:
        self.status, self.err = status, err


Gen = Callable[..., Ran]


@pytest.fixture
def gen(capsys: pytest.CaptureFixture[str]) -> Gen:
    """`gen("--thr=20")`: the command on `WORKLOAD` and the null target, unless the arguments say otherwise."""

    def call(*arguments: str, log: str = "log.yaml", target: str = "null:faults.yaml") -> Ran:
        if not Path("log.yaml").exists():
            write_workload(WORKLOAD, Path("log.yaml"))
        if not Path("faults.yaml").exists():
            faults({})
        capsys.readouterr()
        return Ran(main(["gen_configs", log, *arguments, "-a", target]), capsys.readouterr().err)

    return call


def faults(more: dict[str, dict[str, object]]) -> None:
    times = {pattern: {"time_ms": time} for pattern, time in TIMES.items()}
    Path("faults.yaml").write_text(yaml.safe_dump(times | more, sort_keys=False))


def names(folder: str = "tunings") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


# -- what is written -------------------------------------------------------------------------------


def test_every_problem_gets_a_tuning_file_and_a_script(gen: Gen):
    outcome = gen()
    assert outcome.status == SUCCESS
    assert names() == [
        *("CONV2D_SSS_0.sh", "CONV2D_SSS_0.yaml", "SSS_NN_0.sh", "SSS_NN_0.yaml", "SSS_NN_1.sh", "SSS_NN_1.yaml"),
        *("summary.csv", RECORDS_FILE),
    ]  # fmt: skip
    tunings, errors = read_tunings(Path("tunings"))
    assert errors == ()
    assert {each.name: (each.operation, each.count) for each in tunings} == {
        "SSS_NN_0": (SMALL, 6),
        "SSS_NN_1": (LARGE, 30),
        "CONV2D_SSS_0": (CONV, 1),
    }
    assert {(each.target.name, each.device) for each in tunings} == {("null:faults.yaml", "null")}
    assert outcome.err.splitlines()[-1] == (
        "Writing 3 tuning files of 3 problems to tunings: 100.0 % of the time; all shares are in tunings/summary.csv"
    )


def test_shares_are_those_of_the_time(gen: Gen):
    gen()
    found = {each.problem: each for each in read_summary(Path("tunings/summary.csv"))}
    assert {name: each.percent for name, each in found.items()} == {
        "SSS_NN_0": pytest.approx(60.0),
        "SSS_NN_1": pytest.approx(30.0),
        "CONV2D_SSS_0": pytest.approx(10.0),
    }
    assert read_tuning(Path("tunings/SSS_NN_1.yaml")).share == pytest.approx(30.0)
    assert found["SSS_NN_1"].milliseconds == pytest.approx(1.0)


def test_problems_below_the_threshold_are_in_the_summary_only(gen: Gen):
    """Their names do not depend on the threshold."""
    outcome = gen("--thr", "20", "--output_dir=mine")
    assert outcome.status == SUCCESS
    assert [name for name in names("mine") if name.endswith(".yaml")] == ["SSS_NN_0.yaml", "SSS_NN_1.yaml"]
    kept = {each.problem: each.is_kept for each in read_summary(Path("mine/summary.csv"))}
    assert kept == {"SSS_NN_0": True, "SSS_NN_1": True, "CONV2D_SSS_0": False}
    assert "its share is below 20 %" in Path("mine/summary.csv").read_text()
    assert "2 tuning files of 3 problems to mine: 90.0 % of the time" in outcome.err


def test_scripts_run_their_tuning_file_wherever_they_are_called(gen: Gen):
    """With further options, which may have spaces."""
    gen()
    Path("bin").mkdir()
    Path("bin/dispatch-profiler").write_text('#!/bin/sh\npwd\nprintf "%s|" "$@"\n')
    Path("bin/dispatch-profiler").chmod(0o755)
    environment = {**os.environ, "PATH": f"{Path('bin').resolve()}:{os.environ['PATH']}"}
    done = subprocess.run(
        [Path("tunings/SSS_NN_1.sh").resolve(), "--seed=3", "a b"], env=environment, cwd="/", capture_output=True, text=True, check=True
    )  # fmt: skip
    tuning = Path("tunings/SSS_NN_1.yaml").resolve()
    # The null target names a file relative to the folder in which `gen_configs` ran.
    assert done.stdout == f"{Path().resolve()}\noptimize|--only=search|{tuning}|--seed=3|a b|"


def test_scripts_run_this_package_without_a_command_on_the_path(gen: Gen):
    gen()
    script = Path("tunings/SSS_NN_1.sh").resolve()
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [script, "--help"], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    assert "--log-summary" in done.stdout


def test_the_script_of_a_target_without_a_file_stays_in_the_callers_folder(gen: Gen):
    assert gen(target="null").status == SUCCESS
    script = Path("tunings/SSS_NN_1.sh").read_text()
    assert '"$here"/SSS_NN_1.yaml' in script and '\ncd "$here"' not in script


def test_the_arguments_of_the_document_are_accepted(gen: Gen):
    """The path of hipBLASLt is not needed, in one sentence."""
    write_workload(WORKLOAD, Path("hipblaslt.log"))
    outcome = gen("hipblaslt.log", "-d", "0", log="/path/to/rocm-libraries/projects/hipblaslt/")
    assert outcome.status == SUCCESS
    assert outcome.err.splitlines()[0] == (
        "/path/to/rocm-libraries/projects/hipblaslt/ is not needed: IREE compiles the kernels, not hipBLASLt"
    )
    assert read_tuning(Path("tunings/SSS_NN_0.yaml")).device == "null://0"


# -- what is measured ------------------------------------------------------------------------------


def test_a_convolution_is_profiled_in_the_compilers_form_and_in_the_fastest():
    """Here they differ: the filter is stored as fhwc."""
    target = parse_target("llvm-cpu")
    conv = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    assert [each.configuration.name for each in untuned(SMALL, target)] == ["tile_config_default"]
    assert [each.configuration.kind for each in untuned(conv, target)] == ["default", "formed"]


def test_a_problem_whose_default_is_wrong_is_not_kept(gen: Gen):
    """However fast it is; others are kept, and the exit status tells."""
    faults({f"{SMALL.name}_*": {"fault": "wrong_element", "time_ms": 1e-3}})
    outcome = gen()
    assert outcome.status == FAILED
    assert "SSS_NN_0 (matmul 16x32x8): no untuned configuration is correct (FAILED: " in outcome.err
    found = {each.problem: each for each in read_summary(Path("tunings/summary.csv"))}
    assert (found["SSS_NN_0"].is_kept, found["SSS_NN_0"].percent) == (False, None)
    assert found["SSS_NN_1"].percent == pytest.approx(75.0)
    assert "SSS_NN_0.yaml" not in names()


def test_a_second_run_measures_nothing_again(gen: Gen):
    """Records are kept beside the tuning files; those that an interrupted run has not made are added."""
    gen()
    file = Path("tunings", RECORDS_FILE)
    before, whole = file.read_bytes(), gen().err
    assert file.read_bytes() == before
    assert "[Profiling]" not in whole
    lines = before.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:1]) + lines[1][:50])  # killed while it wrote the second
    assert gen().err.count("[Profiling]") == 2
    assert sorted(each.dispatch for each in read_records(file)) == sorted(
        f"{each.name}_tile_config_default" for each in (SMALL, LARGE, CONV)
    )


def test_ctrl_c_keeps_what_was_measured(gen: Gen, monkeypatch: pytest.MonkeyPatch):
    whole = Evaluator.records

    def interrupted(self, candidates):
        yield next(whole(self, candidates))
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluator, "records", interrupted)
    outcome = gen()
    assert outcome.status == 130
    assert "finished work is kept" in outcome.err
    assert len(read_records(Path("tunings", RECORDS_FILE))) == 1
    assert names() == [RECORDS_FILE]


# -- devices ---------------------------------------------------------------------------------------


def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self):
        raise TargetError("no device 'hip' on this machine")

    monkeypatch.setattr(Evaluator, "check_device", check)


def test_without_the_targets_device_problems_are_weighed_by_flops(gen: Gen, monkeypatch):
    """One sentence says so, and the tuning files are for the target."""
    absent(monkeypatch)
    outcome = gen(target="gfx950")
    assert outcome.status == SUCCESS
    assert outcome.err.count("weighed by their FLOP count") == 1
    assert "no device for rocm:gfx950 is available here (no device 'hip' on this machine)" in outcome.err
    work = {"SSS_NN_0": 6 * SMALL.flops, "SSS_NN_1": 30 * LARGE.flops, "CONV2D_SSS_0": CONV.flops}
    found = {each.problem: each for each in read_summary(Path("tunings/summary.csv"))}
    for name, flops in work.items():
        assert found[name].percent == pytest.approx(100.0 * flops / sum(work.values()))
        assert (found[name].weighed_by, found[name].milliseconds) == ("flops", None)
    tuning = read_tuning(Path("tunings/SSS_NN_0.yaml"))
    assert (tuning.target.name, tuning.device) == ("rocm:gfx950", "hip")
    assert RECORDS_FILE not in names()


def test_kinds_that_only_pack_weights_are_searched_if_weights_are_constant(gen: Gen, monkeypatch):
    """Winograd microkernels need packed filters."""
    absent(monkeypatch)
    deep = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
    write_workload(Workload((WorkloadEntry(deep, 1),)), Path("deep.yaml"))
    gen(log="deep.yaml", target="x86-64-v3")
    (file,) = Path("tunings").glob("CONV2D*.yaml")
    tuning = read_tuning(file)
    assert WinogradMicrokernel.kind in tuning.kinds
    for packs in (True, False):
        kinds = {each.kind.kind for each in replace(tuning, packed_weights=packs).space().spaces}
        assert (WinogradMicrokernel.kind in kinds) == packs


def test_a_device_that_is_named_must_exist(gen: Gen, monkeypatch):
    absent(monkeypatch)
    outcome = gen("-d", "1", target="gfx950")
    assert outcome.status == USAGE
    assert "error: no device 'hip' on this machine" in outcome.err
    assert not Path("tunings").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gfx950", "rocm:gfx950"),
        ("mi300x", "rocm:mi300x"),
        ("rocm:gfx942", "rocm:gfx942"),
        ("sm_80", "cuda:sm_80"),
        ("h200", "cuda:sm_90"),
        ("znver4", "llvm-cpu:znver4"),
        ("llvm-cpu", "llvm-cpu"),
        ("vulkan-spirv", "vulkan-spirv"),
    ],
)
def test_an_architecture_or_a_target_may_be_named(text: str, name: str):
    assert parse_architecture(text) == parse_target(name)


def test_an_unknown_architecture_is_rejected(gen: Gen):
    outcome = gen(target="gfx9999")
    assert (outcome.status, "unknown architecture 'gfx9999'" in outcome.err) == (USAGE, True)


# -- invalid input ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_damaged_lines_are_reported_and_the_rest_is_tuned(gen: Gen):
    outcome = gen(log=str(DAMAGED))
    assert outcome.status == FAILED
    assert "gemm_log_damaged.yaml:6: M must be at least 1, but got -5" in outcome.err
    assert len(read_tunings(Path("tunings"))[0]) == 5


@pytest.mark.parametrize("content", ["", "\n# nothing\n", "no log\n"])
def test_a_log_without_problems_is_an_error(gen: Gen, content: str):
    Path("other.log").write_text(content)
    outcome = gen(log="other.log")
    assert outcome.status == USAGE
    assert "other.log has no operations" in outcome.err
    assert not Path("tunings").exists()


def test_nothing_above_the_threshold_is_an_error_that_keeps_the_shares(gen: Gen):
    outcome = gen("--thr=61")
    assert outcome.status == USAGE
    assert "no problem has a share of 61 %: the largest is 60.0 %, of SSS_NN_0" in outcome.err
    assert "hint: lower --min-share; tunings/summary.csv has all shares" in outcome.err
    assert names() == ["summary.csv", RECORDS_FILE]


@pytest.mark.parametrize("value", ["-1", "101", "nan", "x"])
def test_a_threshold_is_a_percentage(gen: Gen, value: str):
    outcome = gen(f"--thr={value}")
    assert (outcome.status, "expected a number from 0 to 100" in outcome.err) == (USAGE, True)


@pytest.mark.parametrize(
    "content", ["configurations: []\n", "{", "format: dispatch_profiler tuning\noperation: {kind: matmul, m: 1, n: 1, k: 1}\ntarget: null\n"]
)  # fmt: skip
def test_a_folder_with_other_files_is_left_alone(gen: Gen, content: str):
    Path("tunings").mkdir()
    Path("tunings/SSS_NN_0.yaml").write_text(content)
    outcome = gen()
    assert outcome.status == USAGE
    assert "tunings has files of other tunings: SSS_NN_0.yaml" in outcome.err
    assert Path("tunings/SSS_NN_0.yaml").read_text() == content
    assert names() == ["SSS_NN_0.yaml"]


def test_a_folder_of_another_target_or_workload_is_left_alone(gen: Gen):
    gen()
    before = {name: Path("tunings", name).read_bytes() for name in names()}
    assert gen(target="null").status == USAGE
    write_workload(Workload(WORKLOAD.entries[1:]), Path("other.yaml"))
    assert gen(log="other.yaml").status == USAGE
    assert {name: Path("tunings", name).read_bytes() for name in names()} == before


def test_a_file_in_the_place_of_the_folder_is_an_error(gen: Gen):
    Path("tunings").write_text("")
    assert "--output: tunings is a file" in gen().err


def test_another_threshold_for_the_same_workload_keeps_changed_settings(gen: Gen):
    """Files of problems that are no longer kept are removed."""
    gen()
    file = Path("tunings/SSS_NN_0.yaml")
    file.write_text(
        file.read_text().replace("evaluations: 64", "evaluations: 7").replace("seed: 0", "seed: 5")
    )
    assert gen("--thr=50").status == SUCCESS
    assert names() == ["SSS_NN_0.sh", "SSS_NN_0.yaml", "summary.csv", RECORDS_FILE]
    tuning = read_tuning(file)
    assert (tuning.evaluations, tuning.seed) == (7, 5)


# -- with IREE -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_sample_log_on_this_cpu(gen: Gen):
    """Every problem of BERT has a correct default, and a share of the time."""
    outcome = gen(log=str(SHARED / "gemm_log.yaml"), target="llvm-cpu")
    assert outcome.status == SUCCESS, outcome.err
    rows = read_summary(Path("tunings/summary.csv"))
    assert sum(each.percent or 0.0 for each in rows) == pytest.approx(100.0)
    assert all(each.is_kept and each.milliseconds for each in rows)
    assert len(read_tunings(Path("tunings"))[0]) == len(rows)
