"""A run on several devices, and the cores that load vmfbs before anything is measured."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import invented
from worker_helpers import InProcessWorker

from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, Selection, Tree, load_manifest
from dispatch_profiler.errors import TargetError, ToolError, UsageError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.compare.pairing import CompareOptions, compare_records
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation import evaluator as evaluator_module
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions, TreeCandidates, Vmfb
from dispatch_profiler.profiler.evaluation.devices import (
    DeviceCrew,
    Evaluators,
    parse_devices,
    shares,
    unlike,
)
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator, compiles_when_loaded, load_in_parallel
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.runtime import all_devices

TWO = "null://0,null://1"
SHAPES = ("--problem-m=8,16", "--problem-n=8", "--problem-k=8,16,24", "--lhs=f32")


def candidates_of(folder: Path):
    pairs = load_manifest(Tree(folder)).choose(Selection.parse("*", "all"))
    return TreeCandidates(Tree(folder)).candidates(pairs)


def test_every_share_of_an_operation_has_what_it_is_compared_with(tree):
    candidates = candidates_of(tree("--problem-m=64", "--problem-n=64", "--problem-k=64", "--lhs=f32"))
    others = [each for each in candidates if each.dispatch.configuration != Default()]
    many = [*candidates, *others * 40]

    found = list(shares(many))

    assert sum(len(share.others) for share in found) == 41 * len(others)
    assert max(len(share.others) for share in found) == 16
    assert {share.baselines for share in found} == {tuple(each for each in candidates if each not in others)}
    assert len(found) == -(-41 * len(others) // 16)


def test_work_is_done_once_and_the_default_on_each_device_that_works_on_it(tree, run):
    folder = tree(*SHAPES)
    wanted = {each.dispatch.name for each in candidates_of(folder)}

    outcome = run("profiler", f"--devices={TWO}", "--format=json", "--budget=0.1", "--output=both.csv")

    records = [json.loads(line) for line in outcome.out.splitlines()]
    assert outcome.status == 0, outcome.err
    assert {record["dispatch"] for record in records} == wanted
    assert {record["verdict"] for record in records} == {"SUCCESS"}
    assert "unlike devices: null://0, null://1" in outcome.err
    counts = Counter((r["operation"], r["provenance"]["device"], r["configuration"]) for r in records)
    assert set(counts.values()) == {1}
    with_others = {key[:2] for key in counts}
    assert with_others == {key[:2] for key in counts if key[2] == "tile_config_default"}
    again = run("profiler", f"--devices={TWO}", "--resume", "--output=both.csv", "--format=json")
    assert again.out == ""
    assert f" of {len(wanted)} dispatches" in again.err


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_devices_of_one_processor_take_turns_and_have_tables_of_their_own(run):
    """`local-task` and `local-sync` are as unlike as devices can be here: one has no threads."""
    shapes = ("--problem-m=8", "--problem-n=8,16", "--problem-k=8", "--lhs=f32", "--default-config=only")
    assert run("generator", "--target=llvm-cpu", *shapes).status == 0
    assert run("compile", "-j1").status == 0

    outcome = run(
        "profiler", "--devices=local-task,local-sync", "--benchmark-repetitions=2", "--format=table"
    ).checked()
    assert "unlike devices: local-task, local-sync; speeds are compared only with" in outcome.err
    assert sum(f"matmul_8x{n}x8_f32t_f32t_f32t on local-" in outcome.out for n in (8, 16)) == 2
    assert outcome.out.count(" 1.00x ") == 2


def test_interrupted_those_that_were_visited_come_first(tree):
    """Ctrl-C while the second record is waited for: no thread goes on, and what is there is kept."""
    folder = tree(*SHAPES)
    options = EvaluatorOptions("null://0", seconds=60.0)
    with Evaluators(options, TWO.split(",")) as evaluators:
        records = evaluators.records(candidates_of(folder))
        found = [next(records)]
        with pytest.raises(KeyboardInterrupt):
            found.append(records.throw(KeyboardInterrupt()))
            found.extend(records)

    names = [(record.dispatch.name, record.provenance.device) for record in found]
    assert len(names) == len(set(names)) < 2 * len(candidates_of(folder))
    assert not any(record.is_failure for record in found)


def test_what_ctrl_c_cut_short_is_marked(tree, in_process, monkeypatch):
    """So that --resume measures it again: what has samples says that it was interrupted."""
    whole, calls = device_worker.take_batch, []

    def take_batch(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    candidates, found = candidates_of(tree()), []
    with Evaluators(EvaluatorOptions("null"), ["null"]) as evaluators, pytest.raises(KeyboardInterrupt):
        for record in evaluators.records(candidates):
            found.append(record)

    assert [record.measurement.ended_by for record in found] == ["interrupted"] * 2


@pytest.mark.slow
def test_one_device_gives_records_in_their_order(tree):
    candidates = candidates_of(tree(*SHAPES))
    with Evaluators(EvaluatorOptions("null"), ["null"]) as evaluators:
        found = [record.dispatch.name for record in evaluators.records(candidates)]

    assert found == [each.dispatch.name for each in candidates]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected device URIs"),
        ("local-task,,null", "expected device URIs"),
        ("local-task,local-sync,local-task", "local-task is named twice"),
        ("local-task,cuda://0", "code for local-task does not run on cuda://0"),
    ],
)
def test_what_is_no_list_of_devices_is_told(text: str, said: str):
    with pytest.raises(UsageError, match=said):
        parse_devices(text, "local-task")


def test_devices_may_be_numbers():
    assert parse_devices("0,null://2", "null") == ("null://0", "null://2")


@pytest.mark.slow
def test_the_device_may_be_a_number(tree, run):
    tree(*SHAPES)

    assert run("profiler", "--device=1", "--output=run.csv").status == 0
    assert '"device": "null://1"' in Path("run.jsonl").read_text()


def test_device_and_devices_exclude_each_other(tree, run):
    tree(*SHAPES)

    outcome = run("profiler", "--device=null", f"--devices={TWO}").checked(2)
    assert "--device and --devices exclude each other" in outcome.err


def test_only_devices_that_do_not_open_are_an_error():
    with (
        Evaluators(EvaluatorOptions("null"), ["nonsense://3"]) as evaluators,
        pytest.raises(TargetError, match="no device 'nonsense://3' on this machine"),
    ):
        evaluators.check_device()


def test_a_device_that_does_not_open_leaves_the_work_to_the_others(tree):
    candidates = candidates_of(tree(*SHAPES))

    with Evaluators(EvaluatorOptions("null"), ["nonsense://3", "null://0"]) as evaluators:
        evaluators.check_device()
        records = list(evaluators.records(candidates))

    assert evaluators.failures.keys() == {"nonsense://3"}
    assert "no device 'nonsense://3'" in evaluators.failures["nonsense://3"]
    assert [record.dispatch.name for record in records] == [each.dispatch.name for each in candidates]
    assert {record.verdict for record in records} == {Verdict.SUCCESS}


class Stub:
    """An evaluator whose device is gone from candidate number `good` on; of `good` on itself breaks it."""

    LOST = "no device here"

    def __init__(self, device: str, good: int = 10**9, breaks: str = LOST) -> None:
        self.device, self._good, self._breaks, self._seen = device, good, breaks, 0

    def records(self, candidates):
        for candidate in candidates:
            record = Record(candidate.dispatch, Provenance(self.device, "null", "", 1), Verdict.SUCCESS)
            if self._seen >= self._good:
                reason = self._breaks if self._seen == self._good else self.LOST
                record = record.failed(Verdict.CRASHED, reason)
            self._seen += 1
            yield record

    def check_device(self) -> None:
        if self._seen >= self._good:
            raise TargetError(self.LOST)

    def kill(self) -> None:
        """There is no process."""


def crewed(*stubs: Stub, count: int = 40):
    """Records of so many candidates of one operation, and what failed."""
    operation = Matmul(8, 8, 8)
    candidates = [
        Candidate(Dispatch(operation, configuration), "null")
        for configuration in [Default(), *(CpuTiles((8, n), (8, n, 1)) for n in range(1, count))]
    ]
    failures: dict[str, str] = {}
    crew = DeviceCrew({stub.device: stub for stub in stubs}, shares(candidates), failures)
    return list(crew.records()), failures


@pytest.mark.parametrize("breaks", [Stub.LOST, "the worker died: SIGSEGV"])
def test_a_device_that_fails_in_a_run_leaves_the_rest_to_the_others(breaks):
    """Nothing is lost and nothing blamed on a candidate, apart from the one that broke the device."""
    records, failures = crewed(Stub("one://0", good=3, breaks=breaks), Stub("two://0"))

    others = [r for r in records if r.dispatch.configuration != Default()]
    assert sorted(r.dispatch.name for r in others) == sorted({r.dispatch.name for r in others})
    assert len(others) == 39
    crashed = [record for record in records if record.verdict is Verdict.CRASHED]
    if "one://0" in failures:  # it may not have come to a fourth candidate
        assert failures == {"one://0": Stub.LOST}
        assert [record.reason for record in crashed] == ([] if breaks == Stub.LOST else [breaks])


def test_the_last_device_tells_of_each_candidate_that_it_is_gone():
    records, failures = crewed(Stub("one://0", good=0), Stub("two://0", good=0))

    assert len(failures) == 1
    assert {(record.verdict, record.reason) for record in records} == {(Verdict.CRASHED, Stub.LOST)}
    assert len({record.dispatch.name for record in records}) == 40


def test_all_devices_are_those_of_the_driver():
    assert all_devices("local-task") == ("local-task",)
    assert all_devices("null") == ("null",)
    with pytest.raises(TargetError, match="no nonsense device on this machine"):
        all_devices("nonsense")


def test_alike_is_what_has_one_name():
    assert unlike(["local-task"]) == ""
    assert unlike(["local-task", "local-sync"]).startswith("unlike devices: local-task, local-sync;")


@pytest.mark.parametrize(
    ("base", "new", "said"),
    [
        (("local-task",), ("local-task",), ""),
        (("cuda://0",), ("cuda://1",), ""),
        (("local-task",), ("local-sync",), "different devices: local-task vs. local-sync"),
        (("local-task", "local-sync"), ("local-task",), "combines measurements from different devices"),
    ],
)
def test_compare_says_that_devices_are_unlike(base, new, said: str):
    def on(devices):
        return [
            replace(record, provenance=replace(record.provenance, device=devices[at % len(devices)]))
            for at, record in enumerate(invented(12, samples=9))
        ]

    told = compare_records(on(base), on(new), CompareOptions()).unlike

    assert (said in told) if said else not told


class Loads:
    """Sizes of what was loaded, in which thread; `broken` are those that cannot be."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []
        self.broken: dict[int, BaseException] = {}
        self.closed = 0
        #: Both threads must load at once.
        self.together = threading.Barrier(2)

    def load(self, vmfb: bytes) -> None:
        self.done.append((len(vmfb), threading.get_ident()))
        if len(self.done) <= 2:
            self.together.wait(timeout=60)
        if len(vmfb) in self.broken:
            raise self.broken[len(vmfb)]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads()

    class Process(InProcessWorker):
        def close(self) -> None:
            found.closed += 1

        def kill(self) -> None:
            """There is no process to kill."""

    monkeypatch.setattr(evaluator_module, "Worker", Process)
    monkeypatch.setattr(evaluator_module, "usable_processes", lambda: 2)
    monkeypatch.setattr(device_worker, "load", found.load)
    return found


def vmfbs(*sizes: int) -> list[Vmfb]:
    """Of so many bytes."""
    return [Vmfb.of(bytes(size)) for size in sizes]


def test_all_are_loaded_side_by_side_the_largest_first(loads: Loads):
    said: list[str] = []

    load_in_parallel(vmfbs(10, 30, 20, 5), WorkerLimits(), "null", said.append)

    sizes = [size for size, _ in loads.done]
    assert set(sizes[:2]) == {30, 20} and set(sizes[2:]) == {10, 5}
    assert len({thread for _, thread in loads.done[:2]}) == 2
    assert said == ["loading 4 vmfbs first, 2 at a time: the driver compiles their code"]
    assert loads.closed == 2


def test_what_cannot_be_loaded_is_passed_over(loads: Loads):
    """Who runs it will tell."""
    found = vmfbs(10, 30, 20)
    loads.broken = {30: ToolError("no PTX"), 20: MemoryError()}

    load_in_parallel(found, WorkerLimits(), "null")

    assert len(loads.done) == 3 and loads.closed == 2


def test_an_interruption_ends_it(loads: Loads):
    """The processes are gone, and what was not begun is not."""
    found = vmfbs(*range(10, 30))
    loads.broken = {each.size: KeyboardInterrupt() for each in found}

    with pytest.raises(KeyboardInterrupt):
        load_in_parallel(found, WorkerLimits(), "null")

    assert len(loads.done) < 20 and loads.closed == 2


@pytest.mark.parametrize("cores", [1, 3])
def test_one_of_either_is_loaded_by_who_runs_it(loads: Loads, monkeypatch, cores: int):
    monkeypatch.setattr(evaluator_module, "usable_processes", lambda: cores)

    load_in_parallel(vmfbs(10), WorkerLimits(), "null", pytest.fail)

    assert loads.done == []


def test_only_drivers_that_compile_are_served(monkeypatch):
    """And only if they keep what they made."""
    monkeypatch.delenv("CUDA_CACHE_DISABLE", raising=False)
    assert compiles_when_loaded("cuda") and compiles_when_loaded("cuda://1")
    assert not any(map(compiles_when_loaded, ("local-task", "null", "hip", "vulkan")))
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assert not compiles_when_loaded("cuda")


def test_an_evaluator_loads_the_verify_vmfbs_of_what_was_compiled(null_tree, monkeypatch):
    """Each of them once; what did not compile has none."""
    asked: list[Vmfb] = []
    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.evaluator.compiles_when_loaded", lambda _: True
    )
    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.evaluator.load_in_parallel",
        lambda vmfbs, *_: asked.extend(vmfbs),
    )
    folder = null_tree("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    manifest = load_manifest(Tree(folder))
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        evaluator.load_ahead(TreeCandidates(manifest.tree).candidates(manifest.dispatches()), print)

    there = {path.read_bytes() for path in folder.rglob("*_verify.vmfb")}
    assert len(there) > 2 and sorted(vmfb.load() for vmfb in asked) == sorted(there)
