"""Libraries beside dispatches: from the command line to the rows, by the very same steps."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError, WorkerTimedOut
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.cli import main
from dispatch_profiler.profiler.compare.pairing import CompareOptions, compare_records
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import LIBRARY, EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers import threads
from dispatch_profiler.profiler.providers.library_calls import with_providers
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.report.html import grouped
from dispatch_profiler.profiler.report.html.comparison import comparison
from dispatch_profiler.profiler.statistics.stopping import StopRule

ONE = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")
TWO = ("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32", "--default-config=only")
HALF = ("--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f16", "--default-config=only")
QUICK = ("--benchmark-repetitions=3", "--batch-size=1")


@pytest.fixture(autouse=True)
def everything_in_process(in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker.STATE, "library", None)


def rows(path: str = "data.csv") -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def records_of(folder: Path, *providers: str, **options: object):
    """Records of every dispatch of a tree and of the libraries."""
    made = Tree(folder)
    pairs = with_providers(load_manifest(made).dispatches(), providers)
    with Evaluator(EvaluatorOptions("null", **options)) as opened:
        return list(opened.records(TreeCandidates(made).candidates(pairs)))


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_library_has_a_verified_row_for_each_operation(tree, run, library):
    """Beside the dispatches, with its own name, figure and version."""
    pytest.importorskip(library)
    tree(*TWO)
    outcome = run(
        "profiler", f"--providers=iree,{library}", "--output=data.csv", "--columns=all", *QUICK
    ).checked()
    assert [(row["Provider"], row["Verification"]) for row in rows()] == [
        ("IREE Codegen", "SUCCESS"), (library, "SUCCESS"),
        ("IREE Codegen", "SUCCESS"), (library, "SUCCESS"),
    ]  # fmt: skip
    ours, theirs = rows()[:2]
    assert theirs["Dispatch"] == f"{theirs['Operation']}_{library}_matmul"
    assert theirs["Configuration"] == f"{library}_matmul"
    assert theirs["Operation"] == ours["Operation"] and float(theirs["Runtime(ms)"]) > 0
    assert theirs["library"].startswith(f"{library} ") and theirs["iree"] == ""
    assert ours["library"] == "" and ours["iree"].startswith("compiler ")
    assert f"Provider      : {library}\n" in outcome.out


def test_only_libraries_may_be_asked_for(tree, run):
    """One row for each operation that is selected."""
    tree(*TWO)
    assert (
        run("profiler", "--providers=numpy", "--dispatches=matmul_32*", "--output=data.csv", *QUICK).status
        == 0
    )
    assert [row["Configuration"] for row in rows()] == ["numpy_matmul"]
    assert rows()[0]["vs_default"] == "" and float(rows()[0]["vs_reference"]) == 1.0


def test_without_the_option_everything_is_as_before(tree, run):
    """IREE alone, and no column of the table more."""
    tree(*TWO)
    outcome = run("profiler", "--format=table", *QUICK)
    assert "numpy" not in outcome.out and outcome.out.count("vs ") == 2


def test_the_list_names_what_would_be_run(tree, run):
    """`--dry-run` too."""
    tree(*TWO)
    listed = run("profiler", "--dry-run", "--providers=numpy,iree").out.splitlines()
    assert [name.rpartition("f32t_")[2] for name in listed] == [
        "tile_config_default", "numpy_matmul", "tile_config_default", "numpy_matmul"
    ]  # fmt: skip


def test_what_a_library_lacks_is_said_and_is_no_failure(tree, run):
    """A verdict with its reason, no figure, exit status 0."""
    tree(*HALF)
    outcome = run("profiler", "--providers=iree,numpy", "--output=data.csv", *QUICK).checked()
    row = rows()[1]
    assert (row["Verification"], row["Runtime(ms)"]) == ("Not supported", "")
    assert row["reason"].startswith("numpy has no BLAS for f16")
    assert "1 SUCCESS, 1 Not supported" in outcome.err


def test_a_kind_that_a_library_has_no_method_for_is_not_run(tree, monkeypatch):
    """A new kind of operation needs no library."""
    monkeypatch.setattr(Matmul, "family", "without_libraries")
    _, record = records_of(tree(*HALF), "iree", "numpy")
    assert (record.verdict, record.reason) == (Verdict.NOT_SUPPORTED, "numpy does not support matmul")
    assert record.dispatch.configuration.name == "numpy"


@pytest.mark.parametrize("providers", ["iree,numpy", "numpy"])
def test_a_wrong_result_of_a_library_is_a_failure(tree, run, monkeypatch, providers):
    """It has no speed, nothing is compared with it, and the exit status is 1."""
    tree(*TWO)
    whole = device_worker.run_once

    def run_once(module, *arguments):
        return whole(module, *arguments) + np.float32(module == LIBRARY)

    monkeypatch.setattr(device_worker, "run_once", run_once)
    assert run("profiler", f"--providers={providers}", "--output=data.csv", *QUICK).status == 1
    for row in rows():
        failed = row["Provider"] == "numpy"
        assert row["Verification"] == ("FAILED" if failed else "SUCCESS")
        assert (row["Runtime(ms)"] == "") is failed
        assert row["vs_reference"] == ""
        assert (
            not failed or row["reason"].startswith("512 of 512 elements are wrong") or "1024" in row["reason"]
        )


def test_what_is_wrong_only_when_timed_is_a_failure_too(tree, monkeypatch):
    """The result of what is timed is compared as well."""
    whole = device_worker.result_of_timed

    def result_of_timed(modules, *arguments):
        return whole(modules, *arguments) + np.float32(modules.verify.is_library)

    monkeypatch.setattr(device_worker, "result_of_timed", result_of_timed)
    ours, theirs = records_of(tree(*HALF[:3], "--lhs=f32", "--default-config=only"), "iree", "numpy")
    assert (ours.verdict, theirs.verdict) == (Verdict.SUCCESS, Verdict.FAILED)
    assert theirs.reason.startswith("when it was timed 512 of 512") and theirs.measurement is None


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ToolError("it broke"), Verdict.CRASHED), (WorkerTimedOut("no answer"), Verdict.TIMED_OUT)],
)
def test_a_library_that_breaks_costs_no_dispatch(tree, monkeypatch, error, verdict):
    whole = device_worker.take_batch

    def take_batch(modules, *arguments):
        if modules.verify.is_library:
            raise error
        return whole(modules, *arguments)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    records = records_of(tree(*TWO), "iree", "numpy")
    assert [record.verdict for record in records] == [Verdict.SUCCESS, verdict] * 2


@pytest.mark.slow
def test_a_library_is_verified_as_a_dispatch_is(tree, monkeypatch):
    """Integers, then reals, then reals with an offset, each with a reference of its own; stepwise only for the library."""
    seen, whole = [], device_worker.check

    def check(expected, actual):
        seen.append((expected.distribution.value, expected.stepwise))
        return whole(expected, actual)

    monkeypatch.setattr(device_worker, "check", check)
    records_of(tree(*ONE, "--default-config=only"), "iree", "numpy")
    assert seen == [(name, steps) for steps in (False, True) for name in ("integers", "reals", "offset")]


@pytest.mark.slow
def test_a_library_is_measured_in_full_and_ends_nobody_elses_measurement(tree, monkeypatch):
    """Neither is given up for being slow against a library, nor a library against a dispatch."""
    bests, whole = [], device_worker.take_batch

    def take_batch(modules, function, operation, seed, plan, single):
        bests.append((function.rpartition("f32t_")[2], plan.best_ms is not None))
        return whole(modules, function, operation, seed, plan, single)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    made = tree(*ONE)
    records_of(made, "iree", "numpy")
    assert dict(bests[:2]) == {"tile_config_default": False, "numpy_matmul": False}
    bests.clear()
    made_pairs = load_manifest(Tree(made)).dispatches()
    tiled = [p for p in made_pairs if not isinstance(p[1].dispatch.configuration, Default)]
    with Evaluator(EvaluatorOptions("null")) as opened:
        pairs = with_providers(tiled[:1], ("iree", "numpy"))
        list(opened.records(TreeCandidates(Tree(made)).candidates(pairs)))
    assert {known for name, known in bests if name == "numpy_matmul"} == {False}
    assert not bests[1][1]  # the first of the dispatch, after the library's


def test_after_each_row_its_threads_sleep(tree, monkeypatch):
    """Spinning ones would disturb the dispatch that comes next; a process that does not rest is ended."""
    order, whole = [], device_worker.take_batch
    monkeypatch.setattr(threads, "wait_until_asleep", lambda: order.append("asleep") or False)
    monkeypatch.setattr(
        device_worker,
        "take_batch",
        lambda *a: order.append("library" if a[0].verify.is_library else "iree") or whole(*a),
    )
    records_of(tree(*TWO), "iree", "numpy", measure=MeasureOptions(StopRule(count=2)))
    assert order == ["iree", "library", "asleep"] * 4  # two operations, two batches


# -- speeds ----------------------------------------------------------------------------------------


def test_the_csv_has_speeds_relative_to_default_and_reference(tree, run):
    """In every row: what they are compared with is measured first."""
    tree(*ONE)
    run("profiler", "--providers=iree,numpy", "--output=data.csv", "--columns=all", *QUICK)
    found = rows()
    assert len(found) > 4 and [row["Configuration"] for row in found[:2]] == [
        "tile_config_default",
        "numpy_matmul",
    ]
    base, reference = (float(row["Runtime(ms)"]) for row in found[:2])
    for row in found:
        assert float(row["vs_default"]) == base / float(row["Runtime(ms)"])
        assert float(row["vs_reference"]) == reference / float(row["Runtime(ms)"])
        assert row["reference"] == "numpy"
        # Only records of libraries have the overhead of a call.
        assert (row["Provider"] == "numpy") == (float(row["library_call(ms)"] or 0.0) > 0.0)


def test_the_reference_may_be_the_default(tree, run):
    tree(*ONE)
    run("profiler", "--providers=iree,numpy", "--reference=default", "--output=data.csv", *QUICK)
    assert all(row["vs_reference"] == row["vs_default"] != "" for row in rows())
    assert {row["reference"] for row in rows()} == {"default"}


def test_the_table_has_a_column_for_the_reference(tree, run):
    """Sorted by speed; --top keeps the default and the reference."""
    tree(*ONE)
    outcome = run("profiler", "--providers=iree,numpy", "--format=table", "--top=1", *QUICK)
    head, *lines = outcome.out.splitlines()[1:]
    assert re.search(r"vs default +vs numpy +% of peak", head)
    assert {"tile_config_default", "numpy_matmul"} <= {line.split()[-1] for line in lines}
    times = [float(line.split()[0]) for line in lines if re.match(r" +[0-9]", line)]  # not the notes
    assert len(times) >= 2 and times == sorted(times)
    numpy_line = next(line for line in lines if line.endswith("numpy_matmul"))
    assert " 1.00x " in numpy_line


def test_resume_leaves_out_libraries_that_are_there_and_compares_with_them(tree, run):
    """The rows that are still to come have their speeds, too."""
    tree(*ONE)
    run("profiler", "--providers=iree,numpy", "--output=data.csv", "--dispatches=*_default", *QUICK)
    assert len(rows()) == 2
    base, reference = (float(row["Runtime(ms)"]) for row in rows())
    outcome = run("profiler", "--providers=iree,numpy", "--output=data.csv", "--resume", *QUICK)
    assert "already in data.jsonl: 2 of " in outcome.err
    assert [row["Provider"] for row in rows()].count("numpy") == 1
    for row in rows()[2:]:
        assert float(row["vs_default"]) == base / float(row["Runtime(ms)"])
        assert float(row["vs_reference"]) == reference / float(row["Runtime(ms)"])


def test_the_line_that_makes_a_row_again_makes_that_row(tree, run):
    """And no other."""
    tree(*TWO)
    run("profiler", "--providers=iree,numpy", "--output=data.csv", "--columns=all", *QUICK)
    again = rows()[3]["reproduce"].split()
    assert again[:2] == ["python", "profiler.py"]
    assert run("profiler", *again[2:], "--output=again.csv", *QUICK).status == 0
    assert [row["Dispatch"] for row in rows("again.csv")] == [rows()[3]["Dispatch"]]


# -- reports ---------------------------------------------------------------------------------------


def test_the_html_report_shows_default_best_and_library_of_one_group(tree, run):
    """Though another software made them; so for each compiler that there is."""
    tree(*ONE)
    run("profiler", "--providers=iree,numpy", "--output=data.csv", *QUICK)
    records = read_records(Path("data.jsonl"))
    (group,) = grouped(records)
    assert len(group.entries) == len(records) and list(group.providers) == ["numpy"]
    assert group.default is not None and group.default.index == 0
    figure = comparison([group])
    assert figure is not None
    speeds = {trace.get("name"): trace["x"] for trace in figure["data"]}
    medians = {r.configuration: r.measurement.median_ms for r in records if r.measurement}
    assert speeds["numpy"] == [medians["tile_config_default"] / medians["numpy_matmul"]]

    other = [json.loads(line) for line in Path("data.jsonl").read_text().splitlines()]
    for row in other:
        row["provenance"]["iree"] = row["provenance"]["iree"] and "compiler 2, runtime 2"
    with Path("data.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in other if row["provenance"]["iree"])
    groups = grouped(read_records(Path("data.jsonl")))
    assert [list(each.providers) for each in groups] == [["numpy"], ["numpy"]]


def test_a_library_without_iree_is_a_group_of_its_own(tree, run):
    """Nothing is lost from the report."""
    tree(*TWO)
    run("profiler", "--providers=numpy", "--output=data.csv", *QUICK)
    groups = grouped(read_records(Path("data.jsonl")))
    assert [len(group.entries) for group in groups] == [1, 1]
    assert all(group.default is None and group.best is None for group in groups)


def test_two_runs_of_a_library_are_compared(tree, run):
    """By `compare`, as any two: one pair for each dispatch and provider."""
    tree(*TWO)
    run("profiler", "--providers=iree,numpy", "--output=data.csv", *QUICK)
    records = read_records(Path("data.jsonl"))
    found = compare_records(records, records, CompareOptions())
    assert sorted(pair.provider for pair in found.pairs) == ["IREE Codegen"] * 2 + ["numpy"] * 2
    assert any(revision.startswith("numpy ") for revision in found.base.revisions)


# -- requests that cannot be met -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--providers=iree,cublas",), "unknown provider 'cublas'"),
        (("--providers=iree", "--reference=numpy"), "--reference=numpy is not among the providers"),
        (("--providers=numpy", "--reference=best"), "unknown reference 'best'"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_sentence(tree, run, arguments, message):
    """Exit status 2, and nothing has run."""
    tree(*TWO)
    outcome = run("profiler", *arguments, "--output=data.csv")
    assert outcome.status == 2 and message in outcome.err and not Path("data.csv").exists()


def test_without_torch_nothing_runs(tree, run, monkeypatch):
    """One sentence with the pip line, before the first dispatch."""
    tree(*TWO)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *r: None if name == "torch" else find(name, *r)
    )
    outcome = run("profiler", "--providers=iree,torch", "--output=data.csv")
    assert outcome.status == 2 and outcome.out == "" and not Path("data.csv").exists()
    assert "torch is not installed" in outcome.err and "pip install" in outcome.err


@pytest.mark.parametrize("error", [UsageError("no cuda here"), MissingDependency("libgomp is not there")])
def test_a_library_that_does_not_open_ends_the_run_before_it_begins(tree, run, monkeypatch, error):
    """What find_spec cannot see."""
    tree(*TWO)

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(device_worker, "open_library", broken)
    outcome = run("profiler", "--providers=iree,numpy", "--output=data.csv")
    assert outcome.status == 2 and error.message in outcome.err and not Path("data.csv").exists()


def test_help_tells_of_the_providers(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--providers" in capsys.readouterr().out
