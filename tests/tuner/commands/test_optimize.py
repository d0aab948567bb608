"""From tuning files to a library, on the null target: what is kept, what is not, and what is written."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ran import Ran, Run
from worker_helpers import use_in_process_workers

from dispatch_profiler.command import FAILED, INTERRUPTED, SUCCESS, USAGE
from dispatch_profiler.compiler import Cache, NullCompiler
from dispatch_profiler.compiler.workers.pool import BuildPool
from dispatch_profiler.configurations import CpuTiles, Default, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.library import Library
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.compare import live
from dispatch_profiler.profiler.compare.pairing import Pair
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.statistics.comparison import Outcome, Ratio
from dispatch_profiler.targets import NullTarget, fastest_form
from dispatch_profiler.tuner.commands import optimize as steps
from dispatch_profiler.tuner.evaluation.building import CandidateBuilder
from dispatch_profiler.tuner.results import finalists
from dispatch_profiler.tuner.search.progress import SearchProgress
from dispatch_profiler.workloads import Workload, WorkloadEntry, write_workload

SMALL, LARGE = Matmul(16, 32, 8), Matmul(64, 32, 8)
#: 75 and 25 % of the time.
WORKLOAD = Workload((WorkloadEntry(SMALL, 6), WorkloadEntry(LARGE, 2)))
#: Of the shipped list, hence among the seeds.
WINNER, RIVAL = CpuTiles((16, 64), (4, 16, 1)), CpuTiles((64, 128), (16, 16, 1))

STORAGE = Path("tunings/search.log")

Faults = dict[str, dict[str, object]]


def name(operation: Matmul, configuration: CpuTiles | Default) -> str:
    return Dispatch(operation, configuration).name


#: One problem has a configuration that is twice as fast as the default, the other none that is faster.
TIMES: Faults = {
    name(SMALL, WINNER): {"time_ms": 0.25},
    "*_default": {"time_ms": 0.5},
    "*": {"time_ms": 1.0},
}


pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture
def optimize(command: Run) -> Run:
    """`optimize("--seed=1", faults={...})`: the command on the tuning files of `WORKLOAD`.

    A journal and the strategy `random` take less time than the defaults.
    """

    def call(*arguments: str, faults: Faults | None = None, files: str = "tunings", log: str = "") -> Ran:
        if faults is not None or not Path("faults.yaml").exists():
            Path("faults.yaml").write_text(yaml.safe_dump(faults or TIMES, sort_keys=False))
        if not Path("tunings").exists():
            if not log:
                write_workload(WORKLOAD, Path("log.yaml"))
            assert command("gen_configs", log or "log.yaml", "-a", "null:faults.yaml").status == SUCCESS
        quick = ("--evaluations=10", "--strategy=random", f"--storage={STORAGE}", "-j1")
        return command("optimize", files, *quick, *arguments)

    return call


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def winners(folder: str = "final") -> dict[str, str]:
    return {
        each.operation.name: each.dispatch.configuration.name for each in Library.load(Path(folder)).entries
    }


# -- what is kept ----------------------------------------------------------------------------------


def test_the_fastest_configuration_becomes_the_entry_of_its_operation(optimize):
    """With its speed beside the default; an operation whose default is the fastest has none."""
    assert optimize().status == SUCCESS
    assert winners() == {SMALL.name: WINNER.name}
    (entry,) = Library.load(Path("final")).entries
    assert entry.speedup.value == pytest.approx(2.0)
    assert entry.gflops.value == pytest.approx(SMALL.flops / 0.25e6)
    assert entry.provenance.target == "null:faults.yaml"


@pytest.mark.slow
def test_results_have_a_reason_for_each_problem(optimize):
    optimize()
    first, second = rows("results/raw_results.csv")
    assert (first["problem"], first["judgement"], first["reason"]) == ("SSS_NN_0", "kept", "")
    assert (first["reference_configuration"], first["tuned_configuration"]) == (
        "tile_config_default",
        WINNER.name,
    )
    assert float(first["speedup"]) == pytest.approx(2.0) and first["verification"] == "SUCCESS"
    assert (second["judgement"], second["reason"]) == (
        "no finalist",
        "no configuration was 2 % faster than tile_config_default in the search",
    )
    assert rows("results/final_results.csv") == [first]
    metrics = json.loads(Path("results/metrics.json").read_text())
    assert metrics["average_uplift"]["value"] == pytest.approx(100.0)
    assert metrics["weighted_uplift"] is None
    assert metrics["settings"]["target"] == "null:faults.yaml"


@pytest.mark.slow
def test_the_uplift_is_printed(optimize):
    """That of the workload, too, if its summary is given: 75 % of the time is halved."""
    ran = optimize()
    default, launch = ran.out.splitlines()
    assert re.match(
        r"Average uplift against the compiler's default: 100.0 % \(.*\), of 1 entry; geo", default
    )
    assert re.match(r"Average uplift against an untuned launch: 100.0 % \(.*\), of 1 entry; geo", launch)
    assert f"kept: {WINNER.name}, 2.00 times as fast (2.00-2.00) as tile_config_default" in ran.err
    ran = optimize("--log_summary=tunings/summary.csv")
    assert re.search(
        r"\nWeighted total uplift: 60.0 % \(.*\) against the compiler's default, and against an untuned launch 60.0 % "
        r"\(.*\); the kept problems are 75.0 % of the time, all tuned problems 100.0 %",
        ran.out,
    )
    assert rows("results/raw_results.csv")[1]["share(%)"] == "25.0"


def test_the_fastest_known_form_becomes_an_entry_but_is_no_uplift(optimize):
    """Nothing is faster than it, but the compiler's default is slower. A winner is compared with the form."""
    conv = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    form = fastest_form(conv, NullTarget("faults.yaml"))
    assert form is not None
    write_workload(Workload((WorkloadEntry(conv),)), Path("log.yaml"))
    times: Faults = {Dispatch(conv, form).name: {"time_ms": 0.25}, "*_default": {"time_ms": 0.5}}
    ran = optimize("--evaluations=2", faults={**times, "*": {"time_ms": 1.0}}, log="log.yaml")
    assert ran.status == SUCCESS and winners() == {conv.name: form.name}
    default, launch = ran.out.splitlines()
    assert default.startswith(
        "Average uplift against the compiler's default: 100.0 % (100.0 to 100.0 %), of 1 entry;"
    )
    assert launch.startswith("Average uplift against an untuned launch: 0.0 % (0.0 to 0.0 %), of 1 entry;")
    assert "as tile_config_default; an untuned launch runs the kept one, too" in ran.err
    (row,) = rows("results/raw_results.csv")
    assert (row["judgement"], row["reference_configuration"]) == ("no finalist", form.name)
    assert row["reason"].startswith(
        f"no configuration was 2 % faster than {form.name} in the search; {form.name} is in"
    )


@pytest.mark.slow
def test_nothing_that_computes_something_else_is_kept(optimize):
    """However fast it is: in the search, or only when it is compiled from the library."""
    wrong = {"fault": "wrong_element", "time_ms": 0.01}
    ran = optimize(faults={name(SMALL, RIVAL): wrong, **TIMES})
    assert ran.status == SUCCESS and winners() == {SMALL.name: WINNER.name}

    ran = optimize(faults={"*_tuned": wrong, **TIMES})
    assert ran.status == SUCCESS and winners() == {}
    (first, _) = rows("results/raw_results.csv")
    assert (first["judgement"], first["verification"], first["tuned(ms)"]) == ("incorrect", "FAILED", "")
    assert rows("results/final_results.csv") == []


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("fault", "judgement"),
    [
        ({"not_compiled": "no such tile"}, "not compiled"),
        ({"not_applied": True}, "not applied"),
        ({"fault": "nan"}, "incorrect"),
        ({"time_ms": 0.75}, "slower"),
        ({"time_ms": 0.5}, "interval overlaps"),
        ({"time_ms": 0.45}, "below threshold"),
    ],
)
def test_a_winner_that_the_benchmark_does_not_confirm_is_dropped(optimize, fault, judgement):
    ran = optimize("--threshold=20", faults={"*_tuned": fault, **TIMES})
    name = "SSS_NN_0, matmul 16x32x8"
    assert winners() == {} and f"[Benchmark]: {name}: {judgement}: {WINNER.name}: " in ran.err
    first = rows("results/raw_results.csv")[0]
    assert first["judgement"] == judgement and first["reason"]
    assert winners("results/winners") == {SMALL.name: WINNER.name}


@pytest.mark.slow
def test_without_anything_faster_the_library_is_empty_and_a_sentence_says_so(optimize):
    ran = optimize(faults={"*_default": {"time_ms": 0.5}, "*": {"time_ms": 1.0}})
    assert ran.status == SUCCESS and winners() == {}
    assert "has 0 entries of 2 problems: nothing is faster than the compiler's untuned code" in ran.err
    assert ran.out == "Average uplift: none, because the library has no entry\n"


@pytest.mark.parametrize("arguments", [(), ("--only=search",)])
def test_without_a_device_nothing_is_concluded_and_nothing_written(optimize, monkeypatch, arguments):
    """Neither an empty library in place of an earlier one, nor results, nor a report."""

    def fail(self: Evaluator) -> None:
        raise TargetError("no device 'null' on this machine")

    if not arguments:
        assert optimize().status == SUCCESS
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    monkeypatch.setattr(Evaluator, "check_device", fail)
    ran = optimize(*arguments, "--seed=99")
    assert ran.status == USAGE and not ran.out and "nothing is faster" not in ran.err
    assert ran.err.endswith("error: no device 'null' on this machine\n")
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    made = {"faults.yaml", "log.yaml", "tunings"}
    assert {path for path in after if after[path] != before.get(path) and path != STORAGE} <= {
        path for path in after if path.parts[0] in made and path not in before
    }


def test_an_empty_library_says_how_many_problems_had_a_verified_candidate(optimize):
    optimize("--only=search", "--evaluations=1")
    ran = optimize("--seed=1", faults={"*": {"fault": "nan"}})
    assert ran.status == FAILED and "has 0 entries of 2 problems: no candidate was verified" in ran.err
    assert "nothing is faster" not in ran.err


def test_a_default_that_is_wrong_leaves_nothing_to_compare_with(optimize):
    optimize("--only=search", "--evaluations=1")
    ran = optimize(faults={f"{SMALL.name}_tile_config_default": {"fault": "nan"}, **TIMES})
    first = rows("results/raw_results.csv")[0]
    assert first["judgement"] == "not compared" and "no untuned configuration is correct" in first["reason"]
    assert ran.status == SUCCESS and winners() == {}


@pytest.mark.slow
def test_only_winners_are_compiled_again(optimize, monkeypatch):
    """As entries of their library. What they are compared with has the module that the search measured."""
    optimize("--only=search")
    records_of_search = read_records(Path("tunings/search.jsonl"))
    searched = {each.dispatch: each.provenance.module_key for each in records_of_search}
    seen: dict[str, str] = {}
    whole = Evaluator.records

    def records(self, candidates):
        group = list(candidates)
        seen.update((each.dispatch.name, each.module_key) for each in group)
        return whole(self, group)

    monkeypatch.setattr(Evaluator, "records", records)
    ran = optimize()
    default, tuned = f"{SMALL.name}_tile_config_default", f"{SMALL.name}_tile_config_tuned"
    assert ran.status == SUCCESS and list(seen) == [default, tuned]
    assert seen[default] == searched[default] and seen[tuned] not in searched.values()
    assert re.findall(r"\[Benchmark\]: compiled (\S+)", ran.err) == [tuned]


def test_the_benchmark_shares_the_compiler_processes_of_the_search_and_starts_its_own_beside_it(
    optimize, monkeypatch
):
    """While the first round is compiled; nothing is measured before they have started."""
    optimize("--only=search", "--evaluations=1")
    seen = []

    def noted(owner: type, method: str) -> None:
        whole = getattr(owner, method)

        def call(self, *arguments, **options):
            seen.append(method)
            return whole(self, *arguments, **options)

        monkeypatch.setattr(owner, method, call)

    noted(BuildPool, "__init__")
    noted(finalists.Bench, "start_ahead")
    noted(finalists.Bench, "wait")
    noted(Evaluator, "records")
    assert optimize().status == SUCCESS and winners() == {SMALL.name: WINNER.name}
    assert seen[:4] == ["start_ahead", "__init__", "wait", "records"] and seen.count("__init__") == 1


def test_idle_builders_of_the_search_compile_the_winner(optimize, monkeypatch):
    """As the entry of a library that the benchmark measures, which then compiles nothing."""
    asked, built = [], []
    whole, build = CandidateBuilder.candidates, NullCompiler.build

    def candidates(self, dispatches, *arguments, **options):
        asked.append((list(dispatches), len(built)))
        return whole(self, dispatches, *arguments, **options)

    def noted(self, request):
        built.extend(request.dispatches)
        return build(self, request)

    monkeypatch.setattr(CandidateBuilder, "candidates", candidates)
    monkeypatch.setattr(NullCompiler, "build", noted)
    use_in_process_workers(monkeypatch)
    ran = optimize("-j16")
    entry = Dispatch(SMALL, Tuned(WINNER))
    assert ran.status == SUCCESS and winners() == {SMALL.name: WINNER.name}
    assert asked[-1] == ([entry], len(built)) and built.count(entry) == 1


@pytest.mark.slow
def test_what_the_cache_has_lost_is_compiled_again(optimize, monkeypatch):
    optimize("--only=search")
    monkeypatch.setattr(Cache, "get", lambda *_: None)
    ran = optimize()
    assert ran.status == SUCCESS and winners() == {SMALL.name: WINNER.name}
    assert f"[Benchmark]: compiled {SMALL.name}_tile_config_default  [" in ran.err


def test_a_tuning_spec_of_earlier_entries_is_pointed_out(optimize):
    optimize("--only=search")
    Path("final").mkdir()
    Path("final/spec.mlir").write_text("")
    assert "final/spec.mlir has earlier entries: dispatch-profiler library spec final" in optimize().err


# -- runners-up ------------------------------------------------------------------------------------

#: In the order of the search: its times do not tell them apart.
BOTH: Faults = {name(SMALL, RIVAL): {"time_ms": 0.25}, **TIMES}


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest sample is 5 % below the lowest decile, so that equally fast configurations are finalists."""
    monkeypatch.setattr(Measurement, "p10_ms", property(lambda each: 1.05 * each.median_ms))


@pytest.fixture
def beside(noisy: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`beside(Outcome.FASTER, Ratio(0.8, 0.78, 0.82))`: what paired sampling finds of finalists other than the first."""

    def call(outcome: Outcome, ratio: Ratio | None = None) -> None:
        class Comparison(live.CandidateComparison):
            def compared(self, matched, limit=None, test=None):
                if test is None:  # of a winner
                    yield from super().compared(matched, limit)
                    return
                for _ in matched:
                    yield Pair("", "", "", "", outcome, f"it is {outcome.value}", ratio)

        monkeypatch.setattr(finalists, "CandidateComparison", Comparison)

    return call


@pytest.mark.slow
def test_the_finalist_that_is_the_fastest_beside_the_others_is_kept(optimize, beside):
    beside(Outcome.FASTER, Ratio(0.8, 0.78, 0.82))
    ran = optimize(faults=BOTH)
    assert ran.status == SUCCESS and winners() == {SMALL.name: WINNER.name} == winners("results/winners")
    assert f"[Finalists]: SSS_NN_0: {WINNER.name} is the fastest of 2 beside each other\n" in ran.err
    first, second, third = rows("results/raw_results.csv")
    assert (first["problem"], first["judgement"], first["tuned_configuration"]) == (
        "SSS_NN_0",
        "kept",
        WINNER.name,
    )
    # From samples of its own.
    assert float(first["speedup"]) == pytest.approx(2.0)
    assert (second["problem"], second["tuned_configuration"]) == ("SSS_NN_0", RIVAL.name)
    assert (second["judgement"], second["speedup"], second["tuned(ms)"]) == ("runner-up", "", "")
    assert second["reason"] == f"{WINNER.name} is 1.250 (1.220 to 1.282) times as fast beside it"
    assert third["problem"] == "SSS_NN_1" and rows("results/final_results.csv") == [first]
    assert json.loads(Path("results/metrics.json").read_text())["problems"] == 2


@pytest.mark.slow
def test_a_finalist_that_fails_beside_the_others_is_not_kept(optimize, beside):
    beside(Outcome.FAILED)
    optimize("--log_summary=tunings/summary.csv", faults=BOTH)
    assert winners() == {SMALL.name: RIVAL.name}
    first, second, _ = rows("results/raw_results.csv")
    assert (second["tuned_configuration"], second["judgement"]) == (WINNER.name, "not compared")
    assert (first["share(%)"], second["share(%)"]) == ("75.0", "")


@pytest.mark.slow
@pytest.mark.usefixtures("noisy")
def test_if_a_finalist_is_wrong_the_next_one_is_measured(optimize):
    """Here, all are, when they are compiled from the library; the problem has the reason of the first."""
    ran = optimize(faults={"*_tuned": {"time_ms": 0.2, "fault": "wrong_element"}, **BOTH})
    assert ran.status == SUCCESS and winners() == {}
    found = rows("results/raw_results.csv")
    assert [row["judgement"] for row in found] == ["incorrect", "incorrect", "no finalist"]
    assert [row["tuned_configuration"] for row in found[:2]] == [RIVAL.name, WINNER.name]


def test_the_fastest_known_form_replaces_a_winner_that_is_no_faster(optimize):
    conv = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    form = fastest_form(conv, NullTarget("faults.yaml"))
    assert form is not None
    write_workload(Workload((WorkloadEntry(conv),)), Path("log.yaml"))
    times = {
        "*_tuned": {"time_ms": 0.25},
        Dispatch(conv, form).name: {"time_ms": 0.25},
        "*_default": {"time_ms": 0.5},
        "*": {"time_ms": 0.2},
    }
    ran = optimize("--evaluations=6", faults=times, log="log.yaml")
    assert ran.status == SUCCESS and winners() == {conv.name: form.name}
    row = rows("results/raw_results.csv")[0]
    assert row["judgement"] == "interval overlaps" and row["reference_configuration"] == form.name
    assert row["reason"].endswith(
        f"; {form.name}, the fastest known form, is in the library: it is faster than the compiler's default"
    )


# -- interruptions ---------------------------------------------------------------------------------


def test_ctrl_c_before_anything_was_measured_leaves_no_empty_file(optimize, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SearchProgress, "add", interrupted)
    ran = optimize("--storage=tunings/search.db")

    assert ran.status == INTERRUPTED
    (line,) = (each for each in ran.err.splitlines() if "measured" in each or "kept" in each)
    assert line.endswith("interrupted; nothing was measured yet, and the same command begins anew")
    assert Path("tunings/search.db").exists()
    assert not [each for each in Path().rglob("*") if each.is_file() and not each.stat().st_size]


@pytest.mark.slow
@pytest.mark.parametrize("line", [2, 7])
def test_an_interrupted_run_continues_and_ends_with_the_same_library(optimize, monkeypatch, line):
    lines = [0]
    whole = SearchProgress.add

    def interrupted(self, event):
        lines[0] += 1
        if lines[0] == line:
            raise KeyboardInterrupt
        return whole(self, event)

    with monkeypatch.context() as patched:
        patched.setattr(SearchProgress, "add", interrupted)
        ran = optimize()
    assert ran.status == INTERRUPTED
    said = "nothing was measured yet" if line == 2 else f"{STORAGE} has "
    assert f"interrupted; {said}" in ran.err.splitlines()[-1]
    assert ran.err.endswith(
        ", and the same command begins anew\n" if line == 2 else " continues from there\n"
    )
    assert optimize().status == SUCCESS
    assert winners() == {SMALL.name: WINNER.name}
    resumed = Library.load(Path("final")).entries
    STORAGE.unlink()
    assert optimize().status == SUCCESS
    for one, other in zip(resumed, Library.load(Path("final")).entries, strict=True):
        assert (one.dispatch, one.speedup, one.gflops) == (other.dispatch, other.speedup, other.gflops)


@pytest.mark.slow
def test_a_run_that_is_interrupted_in_its_benchmark_continues(optimize, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(live.CandidateComparison, "compared", _interrupted)
        ran = optimize()
    assert ran.status == INTERRUPTED and "no entry is confirmed yet; the same command confirms" in ran.err
    assert not Path("final").exists()
    ran = optimize()
    assert ran.status == SUCCESS and "[Searching]" not in ran.err and winners() == {SMALL.name: WINNER.name}


def test_a_device_that_vanishes_in_the_benchmark_costs_nothing_of_the_search(optimize, monkeypatch):
    def vanished(*_: object, **__: object) -> None:
        raise TargetError("no such device")

    with monkeypatch.context() as patched:
        patched.setattr(live.CandidateComparison, "compared", vanished)
        ran = optimize()
    assert ran.status == USAGE and "the device failed after the search: no such device" in ran.err
    assert (
        "hint: the search is stored, and the library has what was confirmed" in ran.err
        and not Path("final").exists()
    )
    assert "[Searching]" not in optimize().err and winners() == {SMALL.name: WINNER.name}


@pytest.mark.parametrize("earlier", [False, True])
def test_what_was_confirmed_before_an_interruption_is_in_the_library(optimize, monkeypatch, earlier: bool):
    """Of an earlier run, too, until it is confirmed again."""
    faults = {f"*{WINNER.name}": {"time_ms": 0.25}, "*": {"time_ms": 1.0}}
    if earlier:
        assert optimize(faults=faults).status == SUCCESS
        assert len(winners()) == 2
    whole, calls = live.CandidateComparison.compared, itertools.count()

    def second_is_interrupted(*arguments: object, **options: object) -> object:
        if next(calls):
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(live.CandidateComparison, "compared", second_is_interrupted)
        ran = optimize(faults=faults)
    assert ran.status == INTERRUPTED
    assert set(winners().values()) == {WINNER.name} and len(winners()) == (2 if earlier else 1)
    count = "2 confirmed entries" if earlier else "1 confirmed entry"
    assert f"final/library.json has {count}; the same command confirms the rest" in ran.err
    assert optimize(faults=faults).status == SUCCESS and len(winners()) == 2


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


# -- arguments -------------------------------------------------------------------------------------


def test_the_command_of_the_document_runs_as_written(command, monkeypatch):
    """With a log of hipBLASLt, and with its path, which is not needed. Here, one device does all the work."""
    whole = steps.search_tunings
    seen = []

    def search_tunings(tunings, storage, options, *rest):
        seen.extend(options.devices)
        return whole(tunings, storage, replace(options, devices=options.devices[:1]), *rest)

    monkeypatch.setattr(steps, "search_tunings", search_tunings)
    Path("faults.yaml").write_text(yaml.safe_dump(TIMES, sort_keys=False))
    line = (
        "- {{function: matmul, M: {m}, N: 16, K: 8, lda: 8, ldb: 8, ldc: {m}, ldd: {m}, stride_a: 0, stride_b: 0, "
        "stride_c: 0, stride_d: 0, alpha: 1.0, beta: 0.0, transA: T, transB: N, batch_count: 1, scaleA: 0, scaleB: 0, "
        "scaleAlpha_vector: false, gradient: false, use_e: false, bias_vector: false, bias_source: d, a_type: bf16_r, "
        "b_type: bf16_r, c_type: bf16_r, d_type: bf16_r, scale_type: f32_r, bias_type: f32_r, compute_type: c_f32_r, "
        "activation_type: none, flush: false, rotating: 512, cold_iters: 0, iters: 0, call_count: 1}}\n"
    )
    Path("hipblaslt.log").write_text(line.format(m=32) + line.format(m=64))
    hipblaslt = "/path/to/rocm-libraries/projects/hipblaslt/"
    ran = command("gen_configs", hipblaslt, "hipblaslt.log", "-a", "null:faults.yaml").checked()
    for file in Path("tunings").glob("*.yaml"):
        file.write_text(re.sub(r"(?m)^evaluations: 64$", "evaluations: 10", file.read_text()))
    ran = command("optimize", hipblaslt, "tunings", "--devices=0,1,2,3").checked()
    assert "/path/to/rocm-libraries/projects/hipblaslt/ is not needed" in ran.err
    assert seen == ["null://0", "null://1", "null://2", "null://3"]
    assert {path.name for path in Path("results").iterdir()} == {
        *("raw_results.csv", "final_results.csv", "metrics.json", "report.html", "winners"),
    }
    assert Path("tunings/search.db").exists() and Library.load(Path("final")) is not None
    command("merge", "--no_eff", "--force_merge", "True", "final", "final", "merged").checked()


@pytest.mark.slow
def test_scripts_of_gen_configs_search_their_problem_only(optimize):
    assert optimize("--only=search", files="tunings/SSS_NN_0.yaml").status == SUCCESS
    assert not Path("final").exists() and not Path("results").exists()
    ran = optimize("--only=search", files="tunings/SSS_NN_1.yaml")
    assert ran.status == SUCCESS
    ran = optimize()
    assert "[Searching]" not in ran.err and winners() == {SMALL.name: WINNER.name}


def test_an_empty_folder(command):
    Path("tunings").mkdir()
    ran = command("optimize", "tunings")
    assert ran.status == USAGE and "tunings has no tuning files" in ran.err


def test_a_folder_that_tune_wrote_is_pointed_at_its_tuning_files(command):
    Path("tuned/tunings").mkdir(parents=True)
    assert "hint: they are in tuned/tunings\n" in command("optimize", "tuned").err


def test_only_damaged_tuning_files(command):
    Path("tunings").mkdir()
    Path("tunings/SSS_NN_0.yaml").write_text("format: dispatch_profiler tuning\noperation: 7\n")
    ran = command("optimize", "tunings")
    assert ran.status == USAGE and "skipped: tunings/SSS_NN_0.yaml: " in ran.err
    assert "tunings has no valid tuning files" in ran.err


@pytest.mark.slow
def test_a_damaged_tuning_file_costs_only_its_own_problem(optimize):
    optimize("--only=search")
    Path("tunings/SSS_NN_1.yaml").write_text("format: dispatch_profiler tuning\noperation: 7\n")
    assert optimize().status == FAILED
    assert winners() == {SMALL.name: WINNER.name}


def test_the_library_of_another_target_is_not_replaced(optimize, command):
    optimize()
    Path("other.yaml").write_text(Path("faults.yaml").read_text())
    assert command("gen_configs", "log.yaml", "-a", "null:other.yaml", "-o", "other").status == SUCCESS
    before = {each: each.read_text() for each in Path("final").rglob("*.json")}
    ran = command("optimize", "other", "--evaluations=3").checked(USAGE)
    assert "final is a library for null:faults.yaml, not for null:other.yaml" in ran.err
    assert {each: each.read_text() for each in Path("final").rglob("*.json")} == before


def test_entries_of_other_problems_are_not_replaced(optimize):
    optimize()
    ran = optimize(files="tunings/SSS_NN_1.yaml")
    assert ran.status == USAGE and f"final has entries of other tunings: {SMALL.name}" in ran.err
    assert winners() == {SMALL.name: WINNER.name}


def test_tuning_files_for_several_targets_are_not_one_library(optimize):
    optimize("--only=search")
    file = Path("tunings/SSS_NN_1.yaml")
    file.write_text(file.read_text().replace("null:faults.yaml", "null"))
    ran = optimize()
    assert ran.status == USAGE and "are for several targets, but a library is for one" in ran.err


def test_a_summary_of_other_problems(optimize):
    optimize("--only=search")
    summary = Path("tunings/summary.csv")
    summary.write_text(summary.read_text().replace("SSS_NN_1", "SSS_TN_1"))
    ran = optimize("--log_summary=tunings/summary.csv")
    assert ran.status == USAGE and "tunings/summary.csv does not have SSS_NN_1" in ran.err
