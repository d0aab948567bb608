"""`profiler.py` on the null target: verdicts, exit statuses, rejections, and output files."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.dispatches import Tree
from dispatch_profiler.errors import TargetError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.profiler import cli
from dispatch_profiler.profiler.cli import print_notes
from dispatch_profiler.profiler.evaluation import device_worker, hardware, workers
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, command_line, command_of
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.record import StoredRecord
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.runtime import NullDevice

ROOT = Path(__file__).parents[2]
in_process = pytest.mark.usefixtures("in_process")

TWO = ("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32", "--default-config=only")
ONE_DEFAULT = ("--problem-m=16", *TWO[1:])
FIRST = "matmul_16x32x8_f32t_f32t_f32t"
SECOND = "matmul_32x32x8_f32t_f32t_f32t"
EXHIBITION = ("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32")

#: configuration of the first operation -> fault, verdict, reason
EXHIBITS: dict[str, tuple[dict[str, object], str, str]] = {
    "tile_config_default": ({"fault": "hang"}, "Timed out", r"no answer within 2 s; --timeout sets the limit"),
    "tile_config_64x128_8x32x4": ({"not_compiled": "no such tile"}, "Not compiled", r"no such tile"),
    "tile_config_128x128_8x32x1": (
        {"not_applied": True}, "Not applied", r"requested #iree_cpu\.lowering_config<.*>, but configured nothing",
    ),
    "tile_config_64x128_8x128x256_8x32x1": (
        {"fault": "wrong_element"}, "FAILED", r"1 of 512 elements are wrong; .*result\[8, 0\] = .*\(integers, seed 2026\)",
    ),
    "tile_config_64x128_16x16x1": ({"fault": "nan"}, "FAILED", r"1 of 512 .*result\[8, 0\] = nan, but should be .*"),
    "tile_config_16x64_4x16x1": ({"fault": "inf"}, "FAILED", r"1 of 512 .*result\[8, 0\] = inf, but should be .*"),
    "tile_config_1x128_1x32x8": ({"fault": "unwritten"}, "FAILED", r"256 of 512 .* = nan, but should be .*"),
    "flow_config_data_tiling": ({"fault": "crash"}, "Crashed", r"killed by SIGSEGV"),
    "flow_config_ukernels": ({"fault": "memory"}, "Crashed", r"out of memory: .*"),
}  # fmt: skip
FAULTS = {f"{FIRST}_{name}": fault for name, (fault, _, _) in EXHIBITS.items()}


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["Dispatch"]: row for row in csv.DictReader(file)}


def blocks_of(out: str) -> list[dict[str, str]]:
    """label -> value of each block; lines that go on are joined."""
    joined = out.replace("\n" + " " * 16, " ")
    blocks = re.split(r"^-{64}\n", joined, flags=re.MULTILINE)[1:]
    return [{k.strip(): v for k, v in (x.split(": ", 1) for x in b.splitlines())} for b in blocks]


# -- every fault, in one run of real worker processes ----------------------------------------------

_seen: dict[str, Any] = {}


@pytest.fixture
def exhibition(tree: Callable[..., Path], run: Any) -> dict[str, Any]:
    """The outcome of one run over every fault, and its CSV; done once."""
    if not _seen:
        tree(*EXHIBITION, faults=FAULTS)
        _seen["outcome"] = run("profiler", "--timeout=2", "--output=out.csv", "--columns=all")
        _seen["rows"] = rows_of(Path("out.csv"))
    return _seen


@pytest.mark.slow
@pytest.mark.parametrize("configuration", EXHIBITS)
def test_every_fault_has_its_verdict_with_a_reason(exhibition, configuration):
    """In the CSV and in the block."""
    _, verdict, reason = EXHIBITS[configuration]
    name = f"{FIRST}_{configuration}"
    row = exhibition["rows"][name]
    block = next(b for b in blocks_of(exhibition["outcome"].out) if b["Dispatch"] == name)
    assert (row["Verification"], block["Verification"]) == (verdict, verdict)
    assert re.fullmatch(reason, row["reason"]), row["reason"]
    assert block["Reason"].split() == row["reason"].split()


@pytest.mark.parametrize("configuration", EXHIBITS)
def test_nothing_that_failed_has_a_figure(exhibition, configuration):
    """A wrong kernel has no speed, wherever one looks."""
    row = exhibition["rows"][f"{FIRST}_{configuration}"]
    measured = ("Runtime(ms)", "GFLOPs", "min(ms)", "max(ms)", "spread", "samples", "executions_per_sample")
    assert not any(row[name] for name in measured)
    (block,) = [b for b in blocks_of(exhibition["outcome"].out) if b["Dispatch"] == row["Dispatch"]]
    assert block["Runtime(ms)"] == block["GFLOPs"] == "Not profiled"


def test_what_comes_after_a_fault_runs_as_if_there_was_none(exhibition):
    """All nine dispatches of the second operation are right and measured."""
    rows = [row for name, row in exhibition["rows"].items() if name.startswith(SECOND)]
    assert len(rows) == 9
    assert {row["Verification"] for row in rows} == {"SUCCESS"}
    assert all(float(row["Runtime(ms)"]) > 0 and not row["reason"] for row in rows)


def test_a_failure_makes_the_exit_status_one_and_the_summary_counts(exhibition):
    """Eighteen dispatches, each counted under its verdict, the seed named."""
    outcome = exhibition["outcome"]
    assert outcome.status == 1
    assert (
        "18 dispatches: 9 SUCCESS, 4 FAILED, 1 Not applied, 1 Not compiled, 2 Crashed, 1 Timed out"
        " (inputs from seed 2026)" in outcome.err
    )


# -- all good --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_without_faults_ends_with_status_zero(tree, run):
    """Real workers; blocks on standard output and nothing else there."""
    tree(*TWO)
    outcome = run("profiler").checked()
    assert [b["Dispatch"] for b in blocks_of(outcome.out)] == [
        f"{FIRST}_tile_config_default",
        f"{SECOND}_tile_config_default",
    ]
    assert all(b["Verification"] == "SUCCESS" and "Reason" not in b for b in blocks_of(outcome.out))
    assert "2 dispatches: 2 SUCCESS (inputs from seed 2026)" in outcome.err


@in_process
def test_the_figures_are_those_of_the_device(tree, run):
    """A dispatch of 0.25 ms has 2 * 16 * 32 * 8 operations: 0.03 GFLOPs."""
    tree(*TWO, faults={"*": {"time_ms": 0.25}})
    first, _ = blocks_of(run("profiler").out)
    assert (first["Runtime(ms)"], first["GFLOPs"]) == ("0.25", "0.03")


@in_process
def test_a_dispatch_that_takes_no_time_at_all_costs_no_other(tree, run):
    """A clock that did not move is no reason to end."""
    tree(*TWO, faults={f"{FIRST}*": {"time_ms": 0}})
    run("profiler", "--output=out.csv").checked()
    assert list(rows_of(Path("out.csv"))) == [f"{FIRST}_tile_config_default", f"{SECOND}_tile_config_default"]


@in_process
@pytest.mark.parametrize(
    ("verify", "profile", "verdict", "measured"),
    [
        ("true", "true", "SUCCESS", True),
        ("true", "false", "SUCCESS", False),
        ("false", "true", "Not verified", True),
        ("FALSE", "no", "Not verified", False),
    ],
)
def test_verification_and_profiling_can_be_left_out(tree, run, verify, profile, verdict, measured):
    """Each by itself, or both; what was not asked for is no failure."""
    tree(*TWO)
    outcome = run("profiler", f"--verification-enabled={verify}", f"--profiling-enabled={profile}").checked()
    for block in blocks_of(outcome.out):
        assert block["Verification"] == verdict and "Reason" not in block
        assert (block["Runtime(ms)"] != "Not profiled") is measured


@in_process
def test_without_verification_no_reference_is_computed(tree, run):
    """That is what it is for: references of large problems take long."""
    folder = tree(*TWO)
    run("profiler", "--verification-enabled=false")
    assert not list((folder / "generated").rglob("*.npz"))
    run("profiler")
    assert len(list((folder / "generated").rglob("*.npz"))) == 6


@in_process
def test_another_seed_is_named_in_the_summary_and_the_csv(tree, run):
    """And has references of its own."""
    folder = tree(*TWO)
    assert (
        "inputs from seed 7" in run("profiler", "--seed=7", "--output=out.csv", "--columns=default,seed").err
    )
    assert {row["seed"] for row in rows_of(Path("out.csv")).values()} == {"7"}
    run("profiler", "--seed=8")
    assert len(list((folder / "generated").rglob("*.npz"))) == 12


@in_process
def test_repetitions_and_batch_size_reach_the_samples(tree, run):
    """As the CSV says."""
    tree(*TWO)
    run("profiler", "--benchmark-repetitions=3", "--batch-size=1000", "--output=out.csv", "--columns=all")
    for row in rows_of(Path("out.csv")).values():
        assert row["samples"] == "3" and int(row["executions_per_sample"]) >= 1000


@in_process
def test_a_table_stands_in_the_place_of_blocks(tree, run):
    """One part for each operation, no block, the same status."""
    tree(*TWO)
    outcome = run("profiler", "--format=table").checked()
    assert outcome.out.startswith(f"{FIRST}\n") and f"\n\n{SECOND}\n" in outcome.out
    assert "Dispatch " not in outcome.out


# -- choosing --------------------------------------------------------------------------------------


@in_process
def test_dispatches_are_chosen_by_a_comma_list(tree, run):
    """Globs and whole names, in the order of the tree."""
    tree()
    outcome = run("profiler", f"--dispatches=*_ukernels,{FIRST}_tile_config_default,*_8x32x?").checked()
    assert [b["Configuration"] for b in blocks_of(outcome.out)] == [
        "tile_config_default",
        "tile_config_64x128_8x32x4",
        "tile_config_128x128_8x32x1",
        "tile_config_64x128_8x128x256_8x32x1",
        "flow_config_ukernels",
    ]


@pytest.mark.slow
@in_process
def test_dispatches_are_chosen_by_kind(tree, run):
    """`--op-kind` leaves out the other kinds; together with a pattern both must hold."""
    tree("--op-kind=matmul,batch_matmul", "--batch-count=2", *TWO)
    assert len(blocks_of(run("profiler").out)) == 4
    chosen = blocks_of(run("profiler", "--op-kind=batch_matmul").out)
    assert {b["OpKind"] for b in chosen} == {"OperationKind.BatchMatmul"} and len(chosen) == 2
    assert len(blocks_of(run("profiler", "--op-kind=batch_matmul", "--dispatch=*_2x16x*").out)) == 1


def test_a_dry_run_lists_names_and_runs_nothing(tree, run, monkeypatch):
    """No device is opened and no file written."""
    monkeypatch.setattr(Evaluator, "__init__", None)
    tree(*TWO)
    outcome = run("profiler", "--dry-run", "--output=out.csv").checked()
    assert outcome.out.splitlines() == [f"{FIRST}_tile_config_default", f"{SECOND}_tile_config_default"]
    assert not Path("out.csv").exists()


# -- vmfbs that are not what was compiled ----------------------------------------------------------


@in_process
@pytest.mark.parametrize("purpose", ["verify", "profile"])
@pytest.mark.parametrize("damage", ["overwritten", "truncated", "removed", "another's"])
def test_a_damaged_vmfb_is_not_run_and_said_clearly(tree, run, purpose, damage):
    """Status 2 and one sentence with its path and the remedy; the other operation runs."""
    path = tree(*TWO) / f"generated/linalg/matmul/{FIRST}/{FIRST}_{purpose}.vmfb"
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        other = Path(str(path).replace(FIRST, SECOND)).read_bytes()
        path.write_bytes({"overwritten": b"x" * len(content), "truncated": content[:-1]}.get(damage, other))
    outcome = run("profiler", "--output=out.csv")
    rows = list(rows_of(Path("out.csv")).values())
    assert outcome.status == 2
    assert (
        f"profiler.py: error: generated/linalg/matmul/{FIRST}/{path.name} is damaged or missing"
        in outcome.err
    )
    assert "run compile.py again" in outcome.err
    assert [row["Verification"] for row in rows] == ["Not compiled", "SUCCESS"]
    assert not rows[0]["Runtime(ms)"] and f"{path.name} is damaged or missing" in rows[0]["reason"]


@pytest.mark.slow
def test_compiling_again_repairs_a_damaged_vmfb(tree, run):
    """The remedy that the message names is one."""
    (tree(*TWO) / f"generated/linalg/matmul/{FIRST}/{FIRST}_verify.vmfb").write_bytes(b"")
    assert run("profiler", "--profiling-enabled=false").status == 2
    assert run("compile", "-j1").status == 0
    assert run("profiler", "--profiling-enabled=false").status == 0


def test_a_dispatch_that_was_not_compiled_says_so(run):
    """It alone, with the next step; status 1."""
    run("generator", "--target=null", *TWO)
    run("compile", "-j1", f"--dispatches={FIRST}*")
    outcome = run("profiler", "--output=out.csv")
    reasons = {r["Verification"]: r["reason"] for r in rows_of(Path("out.csv")).values()}
    assert outcome.status == 1 and "2 dispatches: 1 SUCCESS, 1 Not compiled" in outcome.err
    assert reasons == {"SUCCESS": "", "Not compiled": "not compiled yet: run compile.py"}


def test_a_tree_that_was_only_generated_is_rejected(run):
    """One sentence, not a block for each dispatch; libraries need no compiled dispatches."""
    run("generator", "--target=null", *TWO)
    outcome = run("profiler", "--output=out.csv")
    assert outcome.status == 2 and not outcome.out and not Path("out.csv").exists()
    assert "not compiled: 2 selected dispatches" in outcome.err
    assert "run compile.py first" in outcome.err
    assert run("profiler", "--dry-run").status == 0
    assert run("profiler", "--providers=numpy", "--budget=0.01").status == 0


# -- requests that cannot be met -------------------------------------------------------------------


@pytest.fixture
def refused(run: Any) -> Callable[..., str]:
    """`refused("--seed=-1")`: the profiler ends with status 2 and a sentence, and writes nothing."""

    def call(*arguments: str) -> str:
        before = set(Path.cwd().rglob("*"))
        outcome = run("profiler", *arguments)
        assert (outcome.status, outcome.out) == (2, ""), outcome
        assert outcome.err.startswith("profiler.py: error: ") and "Traceback" not in outcome.err
        assert set(Path.cwd().rglob("*")) == before
        return outcome.err

    return call


def test_a_folder_that_is_not_there_is_refused(refused):
    """By its path."""
    assert "there is no folder nowhere" in refused("--generated-dir=nowhere")


def test_a_folder_without_a_tree_is_refused(refused):
    """The next step is to generate one."""
    said = refused()
    assert "no generated tree in" in said and "run generator.py" in said


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("{}", "is not a manifest of dispatch_profiler"),
        ('{"format": "another"}', "is not a manifest of dispatch_profiler"),
        ('{"format": "dispatch_profiler manifest", "version": 99}', "has version 99"),
        ("{", "is damaged"),
        ("", "is damaged"),
        ('{"format": "dispatch_profiler manifest", "version": 1, "operations": [{}]}', "is damaged"),
    ],
)
def test_a_foreign_or_damaged_manifest_is_refused(refused, manifest, said):
    """By its path, with what to do."""
    path = Path("generated/linalg/manifest.json")
    path.parent.mkdir(parents=True)
    path.write_text(manifest)
    answer = refused()
    assert said in answer and "manifest.json" in answer and "run generator.py and compile.py again" in answer


def test_a_manifest_that_was_cut_off_is_refused(tree, refused):
    """Half of a real one."""
    path = tree(*TWO) / "generated/linalg/manifest.json"
    path.write_text(path.read_text()[:-300])
    assert "is damaged" in refused()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dispatches=matmul_16x32x8_f32t_f32t_f32t_tile_config_defalt",), f"did you mean '{FIRST}_tile"),
        (("--dispatches=conv*",), "no dispatch matches 'conv*'"),
        (("--dispatches=*,nothing*",), "no dispatch matches 'nothing*'"),
        (("--dispatches=a,,b",), "empty pattern in"),
        (("--op-kind=conv2d",), "no dispatch of conv2d"),
        (("--op-kind=matmull",), "did you mean 'matmul'?"),
        (("--verification-enabled=maybe",), "expected true or false, but got 'maybe'"),
        (("--profiling-enabled=",), "expected true or false, but got ''"),
        (("--benchmark-repetitions=0",), "expected a whole number of at least 1, but got '0'"),
        (("--benchmark-repetitions=1.5",), "but got '1.5'"),
        (("--batch-size=-3",), "but got '-3'"),
        (("--timeout=0",), "expected a number above 0, but got '0'"),
        (("--timeout=nan",), "but got 'nan'"),
        (("--timeout=soon",), "but got 'soon'"),
        (("--memory-limit=0",), "but got '0'"),
        (("--seed=-1",), "--seed: expected a whole number of at least 0, but got -1"),
        (("--seed=x",), "invalid int value: 'x'"),
        (("--build-dir=nowhere",), "nowhere does not contain iree-run-module and iree-benchmark-module"),
        (("--format=xml",), "invalid choice: 'xml'"),
        (("--ouput=a.csv",), "did you mean '--output'?"),
        (("--verification=false",), "unrecognized arguments: --verification=false"),
        (("--output=nowhere/out.csv",), "--output: there is no folder nowhere"),
        (("--output=generated",), "--output: generated is a folder"),
        (("--output=out.csv", "--tags=card"), "--tags: expected key:value, but got 'card'"),
        (("--output=out.csv", "--tags=a:1,:2"), "--tags: expected key:value, but got ':2'"),
        (("--output=out.csv", "--tags=a:1,a:2"), "--tags: 'a' is given twice"),
        (("--output=out.csv", "--tags=m:1"), "--tags: 'm' is already the name of a column"),
        (("--tags=card",), "--tags: expected key:value, but got 'card'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
@in_process
def test_a_request_that_cannot_be_met_is_refused(tree, refused, arguments, said):
    """One sentence that says what was given and what is expected; nothing is run or written."""
    tree(*TWO)
    answer = refused(*arguments)
    assert said in answer, answer


@in_process
def test_a_device_that_is_not_there_is_refused(tree, refused, monkeypatch):
    """Before anything is written, with the drivers that there are."""

    def nothing(uri, build_dir):
        raise TargetError(f"no device {uri!r}: not registered", hint="drivers of this runtime: local-task")

    monkeypatch.setattr(device_worker, "open_kernels", nothing)
    tree(*TWO)
    said = refused("--device=cuda://7", "--output=out.csv")
    assert "no device 'cuda://7'" in said and "drivers of this runtime: local-task" in said


@in_process
@pytest.mark.parametrize(
    ("target", "device"),
    [("cuda:sm_80", "cuda"), ("rocm:gfx942", "hip"), ("vulkan-spirv", "vulkan"), ("metal-spirv", "metal")],
)
def test_a_machine_without_the_targets_device_is_told(run, monkeypatch, target, device):
    """In one sentence, with the status of a request that cannot be met."""

    def nothing(uri, build_dir):
        raise TargetError(f"no device {uri!r} on this machine: no driver", hint="--device names another")

    monkeypatch.setattr(device_worker, "open_kernels", nothing)
    assert run("generator", "--m=4", "--n=4", "--k=4", "--lhs=f32", f"--target={target}").status == 0
    outcome = run("profiler").checked(2)
    assert (
        outcome.err.splitlines()[0] == f"profiler.py: error: no device {device!r} on this machine: no driver"
    )


@in_process
def test_a_device_may_be_named(tree, run):
    """The name stands in every row."""
    tree(*TWO)
    assert run("profiler", "--device=null", "--output=out.csv").status == 0
    assert {row["device"] for row in rows_of(Path("out.csv")).values()} == {"null"}


@in_process
def test_what_is_for_another_device_is_not_run_on_this_one(tree, run):
    """A tree may hold operations of two targets: figures of one device are never given out under the other."""
    path = tree(*TWO) / "generated/linalg/manifest.json"
    before, mark, after = path.read_text().rpartition('"target":"null","source_sha256"')
    path.write_text(before + mark.replace("null", "llvm-cpu") + after)
    assert run("profiler", "--output=out.csv").status in (1, 2)
    rows = rows_of(Path("out.csv")).values() if Path("out.csv").exists() else []
    assert [r for r in rows if (r["target"], r["Verification"]) == ("llvm-cpu", "SUCCESS")] == []


# -- the CSV ---------------------------------------------------------------------------------------


@in_process
def test_a_csv_begins_with_the_tags_and_may_be_appended_to(tree, run):
    """Two runs, one header; a value may hold colons."""
    tree(*TWO)
    for count in ("1", "2"):
        outcome = run("profiler", "--output=out.csv", "--append", f"--tags=url:cuda://0, run:{count}")
        assert outcome.status == 0 and "Writing performance report to out.csv" in outcome.err
    lines = Path("out.csv").read_text().splitlines()
    assert lines[0].startswith("url,run,Dispatch,") and len(lines) == 5
    assert [line.split(",")[:2] for line in lines[1:]] == [["cuda://0", r] for r in "1122"]


@in_process
def test_the_path_of_a_csv_may_begin_at_home(tree, run):
    """As in every other program."""
    tree(*TWO)
    assert run("profiler", "--output=~/out.csv").status == 0
    assert len(rows_of(Path.home() / "out.csv")) == 2


@in_process
def test_what_was_done_before_ctrl_c_is_kept(tree, run, monkeypatch):
    """Interrupted at the third dispatch: two whole rows, two blocks, status 130."""
    tree()
    whole, done = device_worker.estimate, []

    def estimate(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        return whole(*arguments)

    monkeypatch.setattr(device_worker, "estimate", estimate)
    outcome = run("profiler", "--output=out.csv")
    assert outcome.status == 130 and "interrupted" in outcome.err
    assert [row["Verification"] for row in rows_of(Path("out.csv")).values()] == ["SUCCESS"] * 2
    assert len(blocks_of(outcome.out)) == 2
    assert "2 finished dispatches saved in out.jsonl; continue with --resume --output=out.csv" in outcome.err


@in_process
@pytest.mark.parametrize("format_", ["table", "json"])
def test_ctrl_c_without_output_shows_and_keeps_what_is_finished(tree, run, monkeypatch, format_):
    """The next run continues from a file in the user's cache."""
    tree()
    whole, done = device_worker.estimate, []

    def estimate(*arguments):
        done.append(arguments)
        if len(done) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(device_worker, "estimate", estimate)
    outcome = run("profiler", f"--format={format_}", "--markdown=run.md")

    kept = Path.home() / ".cache/dispatch_profiler/interrupted.jsonl"
    assert outcome.status == 130
    assert outcome.out.count("SUCCESS") == 2
    assert "2 dispatches: 2 SUCCESS" in Path("run.md").read_text()
    assert len(read_records(kept)) == 2
    said = (
        f"2 finished dispatches saved in {kept}; continue with --resume --output={kept.with_suffix('.csv')}"
    )
    assert said in outcome.err
    run("profiler", "--resume", f"--output={kept.with_suffix('.csv')}").checked()
    assert len({record.dispatch for record in read_records(kept)}) == 9


@in_process
def test_ctrl_c_before_anything_is_finished_leaves_no_file(tree, run, monkeypatch):
    tree()
    monkeypatch.setattr(Evaluator, "records", raising_interrupt)
    outcome = run("profiler", "--format=table")
    assert outcome.status == 130 and "finished dispatches saved in" not in outcome.err
    assert not (Path.home() / ".cache/dispatch_profiler/interrupted.jsonl").exists()


def raising_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- a reader that goes ----------------------------------------------------------------------------


def profile_into(reader: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`profiler.py ... | reader`; the exit status is that of the profiler."""
    command = shlex.join([sys.executable, str(ROOT / "profiler.py"), *arguments])
    line = f"{{ {command}; echo $? >status; }} | {reader}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    done.returncode = int(Path("status").read_text())
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    "format_", ["table", *(pytest.param(each, marks=pytest.mark.slow) for each in ("blocks", "json"))]
)
def test_a_reader_that_goes_does_not_stop_a_run_that_writes_a_file(tree, format_):
    """It is told once, and every row is written."""
    tree(*EXHIBITION)
    done = profile_into("true", f"--format={format_}", "--output=out.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("standard output was closed; the run continues, because it writes files") == 1
    assert len(rows_of(Path("out.csv"))) == 18


@pytest.mark.slow
def test_a_reader_that_goes_stops_a_run_that_writes_no_file(tree):
    """With a sentence on standard error; what is finished is kept."""
    tree(*EXHIBITION)
    done = profile_into("true")
    assert done.returncode == 1
    assert done.stderr.count("standard output was closed, so the run stops; with --output=FILE.csv") == 1
    assert "Traceback" not in done.stderr


# -- limits and builds -----------------------------------------------------------------------------


@in_process
def test_the_limits_reach_the_worker_of_the_device(tree, run, monkeypatch):
    """Seconds as given, MiB as bytes."""
    limits, real = [], workers.Worker

    def worker(given, *arguments):
        limits.append(given)
        return real(given, *arguments)

    monkeypatch.setattr(workers, "Worker", worker)
    tree(*TWO)
    assert run("profiler", "--timeout=7.5", "--memory-limit=512").status == 0
    assert limits[0] == WorkerLimits(seconds=7.5, memory_bytes=512 * 2**20)


@in_process
def test_a_build_reaches_the_device(tree, run, monkeypatch):
    """The folder that holds both tools, together with the device's name."""
    opened = []
    monkeypatch.setattr(
        device_worker, "open_kernels", lambda *given: opened.append(given) or DeviceKernels(NullDevice())
    )
    # Nor are the peaks of this CPU measured.
    monkeypatch.setattr(hardware, "measure_peaks", lambda: Peaks({"f32": 1e18, "f64": 1e18}, 1e18))
    monkeypatch.setattr(hardware, "environments", lambda: [{}])
    tree(*TWO)
    Path("b/tools").mkdir(parents=True)
    for name in ("iree-run-module", "iree-benchmark-module"):
        (Path("b/tools") / name).touch()
    assert run("profiler", "--build-dir=b", "--device=local-sync").status == 0
    assert opened == [("local-sync", Path("b"))]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("clock_zero", "the clock stood still or went back"),
        ("clock_back", "the clock stood still or went back"),
        ("clock_stalls", "two clocks disagree"),
        ("clock_drifts", "two clocks disagree"),
    ],
)
@in_process
def test_a_device_that_lies_about_time_gives_no_figure_without_a_warning(null_tree, run, fault, says):
    null_tree(*ONE_DEFAULT, faults={"*": {"fault": fault, "time_ms": 0.25}})

    outcome = run("profiler", "--output=data.csv")

    assert says in " ".join(outcome.out.split())
    assert "1 of 1 measurement with a warning" in outcome.err
    (record,) = read_records(Path("data.jsonl"))
    assert any(warning.startswith(says) for warning in record.measurement.warnings)


@in_process
def test_an_honest_device_gives_figures_without_a_warning(null_tree, run):
    null_tree()

    outcome = run("profiler", "--output=data.csv")

    assert "Warning" not in outcome.out
    assert "warning" not in outcome.err
    assert {r.measurement.ended_by for r in read_records(Path("data.jsonl"))} <= {"interval", "abandoned"}


#: Nothing here is as ever.
UNUSUAL = (
    "--seed=7", "--benchmark-repetitions=9", "--batch-size=5", "--precision=0.7", "--budget=1.5",
    "--mode=cold", "--timeout=7.5", "--memory-limit=512", "--device=null",
)  # fmt: skip


@pytest.mark.some(2)
@in_process
@pytest.mark.parametrize(
    "arguments",
    [(), UNUSUAL, ("--verification-enabled=false",), ("--profiling-enabled=false",)],
    ids=["usual", "unusual", "not verified", "not measured"],
)
def test_each_record_is_made_again_by_its_own_line(null_tree, run, arguments):
    """All of it, every sample too, since the null device answers as it is told; only the time is another."""
    null_tree(
        faults={
            "*_default": {"time_ms": 0.25},
            "*_ukernels": {"fault": "nan", "time_ms": 0.3},
            "*": {"time_ms": 0.3},
        }
    )
    run("profiler", "--output=data.csv", *arguments)
    for record in read_records(Path("data.jsonl"))[::4]:
        python, command, *again = shlex.split(record.reproduce)
        assert (python, command) == ("python", "profiler.py")
        run("profiler", *again, "--output=again.csv")
        assert [made_at("", each) for each in read_records(Path("again.jsonl"))] == [made_at("", record)]


@in_process
@pytest.mark.parametrize("prog", ["dispatch-profiler profile", "python -m dispatch_profiler profile"])
def test_a_record_is_made_again_by_the_command_that_made_it(null_tree, prog, capsys):
    """Users of a wheel have no `profiler.py`."""
    null_tree(*ONE_DEFAULT)
    assert cli.main(["--output=data.csv"], prog=prog) == 0
    (record,) = read_records(Path("data.jsonl"))
    assert record.reproduce.startswith(f"{prog} --generated-dir=. --dispatches=")


def made_at(when: str, record: StoredRecord) -> StoredRecord:
    return replace(record, provenance=replace(record.provenance, when=when))


@pytest.mark.slow
def test_the_line_of_a_record_runs_in_a_shell(null_tree, run, monkeypatch):
    """As it stands, where the run was; a folder may have spaces in its name."""
    null_tree(*ONE_DEFAULT)
    Path("a tree").mkdir()
    Path("generated").rename("a tree/generated")
    run("profiler", "--generated-dir=a tree", "--output=data.csv")
    (record,) = read_records(Path("data.jsonl"))
    for name in ("profiler.py", "dispatch_profiler"):
        Path(name).symlink_to(ROOT / name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    done = subprocess.run(
        ["sh", "-c", f"{record.reproduce} --format=json"], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["dispatch"] == record.dispatch
    assert json.loads(done.stdout)["reproduce"] == record.reproduce


def test_a_line_names_only_what_is_not_as_ever(tmp_path):
    """And a build of one's own."""
    usual = EvaluatorOptions("null")
    line = "dispatch-profiler profile --generated-dir=. --dispatches=name --device=null --seed=2026"
    command = command_of(Tree(Path()), "name")
    assert command_line(command, usual) == line
    assert command_line(command, replace(usual, build_dir=Path("b"))) == f"{line} --build-dir=b"
    assert command_line((), usual) == ""


@in_process
def test_a_slow_configuration_is_given_up_early_and_the_default_never(null_tree, run):
    faults = {"*_default": {"time_ms": 90.0}, "*_8x32x4": {"time_ms": 1.0}, "*": {"time_ms": 50.0}}
    null_tree(faults=faults)

    outcome = run("profiler", "--output=data.csv", "--format=table")

    ended = {r.configuration: r.measurement.ended_by for r in read_records(Path("data.jsonl"))}
    assert ended["tile_config_default"] == "interval"
    assert "abandoned" in ended.values()
    assert "abandoned: its interval lies above the interval of the best" in outcome.out


@in_process
def test_resume_does_only_what_is_left(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv")
    whole, rows = read_records(Path("data.jsonl")), Path("data.csv").read_text().splitlines()
    lines = Path("data.jsonl").read_text().splitlines()
    Path("data.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:50])  # killed in the fifth
    Path("data.csv").write_text("\n".join(rows[:5]) + "\n")

    outcome = run("profiler", "--output=data.csv", "--resume")

    assert f"already in data.jsonl: 4 of {len(whole)} dispatches" in outcome.err
    assert outcome.out.count("Dispatch      :") == len(whole) - 4
    assert [r.dispatch for r in read_records(Path("data.jsonl"))] == [r.dispatch for r in whole]
    assert len(Path("data.csv").read_text().splitlines()) == len(rows)


@in_process
def test_resume_does_again_in_cold_mode_what_was_measured_warm(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv", "--dispatches=*_default")
    again = run("profiler", "--output=data.csv", "--dispatches=*_default", "--resume", "--mode=cold")
    assert "already in data.jsonl: 0 of 1 dispatch" in again.err
    once_more = run("profiler", "--output=data.csv", "--dispatches=*_default", "--resume", "--mode=cold")
    assert "already in data.jsonl: 1 of 1 dispatch" in once_more.err
    modes = [record.measurement.mode for record in read_records(Path("data.jsonl")) if record.measurement]
    assert modes == ["warm", "cold"]


@in_process
def test_resume_does_again_what_was_made_another_way(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv", "--dispatches=*_default")

    outcome = run("profiler", "--output=data.csv", "--dispatches=*_default", "--resume", "--seed=7")

    assert "already in data.jsonl: 0 of 1 dispatch" in outcome.err
    assert [r.provenance.seed for r in read_records(Path("data.jsonl"))] == [2026, 7]


@in_process
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, Path.touch])
def test_what_is_no_vmfb_is_a_verdict_on_its_dispatches(null_tree, run, make):
    """A directory, a named pipe, an empty file: none blocks, and the others run."""
    null_tree()
    path = next(Path("generated").rglob("*data_tiling*_verify.vmfb"))
    path.unlink()
    make(path)

    outcome = run("profiler", "--format=json", "--output=data.csv").checked(2)
    assert (
        f"{path.absolute()} is damaged or missing" in outcome.err
        or f"{path} is damaged or missing" in outcome.err
    )
    damaged = [r for r in read_records(Path("data.jsonl")) if "damaged or missing" in r.reason]
    assert damaged and {r.verdict.value for r in damaged} == {"Not compiled"}
    assert all("data_tiling" in r.dispatch for r in damaged)


@in_process
def test_control_characters_of_a_manifest_do_not_reach_the_terminal(null_tree, run):
    null_tree()
    path = Path("generated/linalg/manifest.json")
    data = json.loads(path.read_text())
    data["operations"][0]["dispatches"][0].update(state="not compiled", reason="\x1b[2J\rfine")
    path.write_text(json.dumps(data))

    for format_ in ("blocks", "table"):
        outcome = run("profiler", f"--format={format_}", "--dispatches=*_default")
        assert r"\x1b[2J" in outcome.out
        assert "\x1b" not in outcome.out + outcome.err


@in_process
@pytest.mark.parametrize("torn", ["csv ahead", "csv behind", "no csv", "csv of another version"])
def test_a_csv_is_what_its_records_say_whatever_became_of_it(null_tree, run, torn):
    null_tree()
    run("profiler", "--output=data.csv")
    lines, rows = Path("data.jsonl").read_text().splitlines(), Path("data.csv").read_text()
    Path("data.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:50])
    kept = rows.splitlines()[: 7 if torn == "csv ahead" else 3]
    Path("data.csv").write_text("\n".join([*kept, "half a row"]))
    if torn == "no csv":
        Path("data.csv").unlink()
    if torn == "csv of another version":
        Path("data.csv").write_text("Dispatch,other\nx,y\n")

    run("profiler", "--output=data.csv", "--resume")

    names = [record.dispatch for record in read_records(Path("data.jsonl"))]
    with Path("data.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["Dispatch"] for row in found] == names
    assert len(names) == len(lines) == len(set(names))
    assert all(row["vs_default"] for row in found)
    assert Path("data.csv").read_text().splitlines()[0] == rows.splitlines()[0]


@in_process
@pytest.mark.parametrize("option", ["--resume", "--append"])
def test_a_csv_without_its_records_is_left_as_it_is(null_tree, run, option):
    null_tree()
    Path("data.csv").write_text("a,b\n1,2\n")

    outcome = run("profiler", "--output=data.csv", option).checked(2)
    assert f"{option}: data.csv exists, but data.jsonl does not" in outcome.err
    assert Path("data.csv").read_text() == "a,b\n1,2\n"


@in_process
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("data.json", "data.json has the ending of another format"),
        ("data.JSON", "data.JSON has the ending of another format"),
        ("run.md", "profile --markdown=FILE writes Markdown"),
        ("run.html", "has the ending of another format"),
        ("data.csv", "data.jsonl gets every sample, but is not known to belong to data.csv"),
        ("data.txt", "data.jsonl gets every sample, but is not known to belong to data.txt"),
    ],
)
@pytest.mark.parametrize("foreign", ['{"mine": 1}\n' * 60, "not JSON\n"])
def test_no_run_replaces_samples_that_are_not_known_to_be_its_own(null_tree, run, name, sentence, foreign):
    """A CSV of another program says nothing about the file beside it, either."""
    null_tree()
    Path("data.jsonl").write_text(foreign)
    for rows in (None, "a,b\n1,2\n"):
        if rows is not None:
            Path(name).write_text(rows)
        outcome = run("profiler", f"--output={name}").checked(2)
        assert sentence in outcome.err
        assert Path("data.jsonl").read_text() == foreign
        assert (Path(name).read_text() if Path(name).exists() else None) == rows


@in_process
def test_a_run_replaces_its_own_files_and_those_of_no_other_name(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv", *ONE[:1]).checked()
    before = Path("data.jsonl").read_bytes()
    assert "lines would be lost" in run("profiler", "--output=data.txt").checked(2).err
    assert Path("data.jsonl").read_bytes() == before
    run("profiler", "--output=data.csv").checked()
    assert len(read_records(Path("data.jsonl"))) == len(rows_of(Path("data.csv"))) == 9


@in_process
def test_what_was_interrupted_is_measured_again_and_the_table_is_complete(null_tree, run):
    null_tree()
    run("profiler", "--output=data.csv", "--columns=all")
    rows = [json.loads(line) for line in Path("data.jsonl").read_text().splitlines()]
    rows[2]["measurement"]["ended_by"] = "interrupted"
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[:4]))

    outcome = run("profiler", "--output=data.csv", "--resume", "--format=table")

    assert f"already in data.jsonl: 3 of {len(rows)} dispatches" in outcome.err
    assert all(row["configuration"] in outcome.out for row in rows)
    assert "interrupted" not in outcome.out
    # `vs default` is known though the default was measured by the earlier run.
    assert all(re.search(r" \d+\.\d\dx ", line) for line in outcome.out.splitlines()[2:] if "SUCCESS" in line)
    with Path("data.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["ended_by"] for row in found].count("interrupted") == 0
    assert sorted(row["Dispatch"] for row in found) == sorted(row["dispatch"] for row in rows)


ONE = ("--dispatches=*_default", "--output=data.csv")


@in_process
def test_resume_does_again_what_was_compiled_with_other_flags(null_tree, run):
    null_tree()
    run("profiler", *ONE)
    run("compile", "-j1", "--", "--iree-opt-level=O0")

    assert "already in data.jsonl: 0 of 1 dispatch" in run("profiler", *ONE, "--resume").err
    assert "already in data.jsonl: 1 of 1 dispatch" in run("profiler", *ONE, "--resume").err

    first, second = (record.provenance for record in read_records(Path("data.jsonl")))
    assert set(second.flags) - set(first.flags) == {"--iree-opt-level=O0"}
    assert first.module_key != second.module_key


@in_process
def test_resume_does_again_what_was_compiled_from_an_edited_source(null_tree, run):
    null_tree()
    run("profiler", *ONE)
    (source,) = [path for path in Path("generated").rglob("*.mlir") if "stdout" not in path.name]
    source.write_text(source.read_text().replace("arith.constant 0.0", "arith.constant 00.0"))
    run("compile", "-j1")

    assert "already in data.jsonl: 0 of 1 dispatch" in run("profiler", *ONE, "--resume").err


@in_process
def test_resume_does_again_what_a_record_of_version_1_holds(null_tree, run):
    """It does not tell what was measured."""
    null_tree()
    run("profiler", *ONE)
    row = json.loads(Path("data.jsonl").read_text())
    del row["provenance"]["module_key"], row["provenance"]["flags"]
    Path("data.jsonl").write_text(f"{json.dumps({**row, 'version': 1})}\n")

    assert "already in data.jsonl: 0 of 1 dispatch" in run("profiler", *ONE, "--resume").err


@in_process
@pytest.mark.parametrize("less", ["--verification-enabled=false", "--profiling-enabled=false"])
def test_resume_does_again_what_was_only_half_done(null_tree, run, less):
    null_tree()
    run("profiler", *ONE, less)

    assert "already in data.jsonl: 1 of 1 dispatch" in run("profiler", *ONE, "--resume", less).err
    assert "already in data.jsonl: 0 of 1 dispatch" in run("profiler", *ONE, "--resume").err


@in_process
def test_top_shortens_the_table_and_keeps_the_default(null_tree, run):
    null_tree(faults={"*_default": {"time_ms": 9.0}, "*": {"time_ms": 1.0}})

    rows = run("profiler", "--format=table", "--top=2").out.splitlines()

    assert len(rows) == 2 + 2 + 1
    assert rows[-1].endswith("tile_config_default")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--resume"], "require an output file"), (["--top=3"], "--top applies to the table only")],
)
def test_options_that_need_another_are_refused(null_tree, run, arguments, message):
    null_tree()

    assert message in run("profiler", *arguments).checked(2).err


@in_process
def test_a_figure_that_time_ran_out_for_is_known_less_well(null_tree, run, monkeypatch):
    """Each batch takes 4 % longer than the one before, each as precise as requested."""
    whole, batches = device_worker.take_batch, []

    def take_batch(*arguments):
        found = whole(*arguments)
        batches.append(found)
        factor = 1.0 + 0.04 * len(batches)
        return replace(found, samples_ms=tuple(factor * s for s in found.samples_ms), seconds=0.3)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    null_tree(faults={"*": {"time_ms": 1.0}})
    outcome = run("profiler", "--dispatches=*_default")
    assert "1 of 1 measurement did not reach ±1 % within --budget" in outcome.err


@pytest.mark.parametrize(("device", "build_dir", "told"), [
    ("cuda", Path("b"), True), ("cuda", None, False), ("local-task", Path("b"), False),
])  # fmt: skip
def test_a_gpu_that_each_sample_wakes_up_is_told(capsys, device: str, build_dir: Path | None, told: bool):
    """Commands of another build measure it five times too slow."""
    print_notes((device,), Namespace(build_dir=build_dir, mode="warm"), ("iree", "torch"))
    assert ("so times are too long" in capsys.readouterr().err) is told


@pytest.mark.parametrize(("device", "mode", "providers", "told"), [
    ("cuda", "cold", ("iree", "torch"), True), ("cuda", "warm", ("iree", "torch"), False),
    ("cuda", "cold", ("iree",), False), ("local-task", "cold", ("iree", "torch"), False),
])  # fmt: skip
def test_where_torch_is_not_timed_like_dispatches_is_told(
    capsys, device: str, mode: str, providers, told: bool
):
    print_notes((device,), Namespace(build_dir=None, mode=mode), providers)
    assert ("torch runs eagerly" in capsys.readouterr().err) is told
