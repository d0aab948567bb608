"""An evaluator: candidate after candidate, in memory too, each with a verdict and within the budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.compiler import BuildRequest, Compiler, IreeCompiler, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.errors import TargetError, ToolError, WorkerOutOfMemory, WorkerTimedOut
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.evaluation import device_worker, evaluator
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions, TreeCandidates, Vmfb
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, Mode
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.verify import Expected, VerifiedHashes
from dispatch_profiler.runtime.null import NullCall
from dispatch_profiler.targets import parse_target

ONLY_DEFAULTS = ("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32", "--default-config=only")


def candidates_of(made: Tree) -> list[Candidate]:
    """Every dispatch of a tree."""
    return TreeCandidates(made).candidates(load_manifest(made).dispatches())


def records_of(folder: Path, **options: object) -> list[Record]:
    """Records of every dispatch of a tree."""
    with Evaluator(EvaluatorOptions("null", **options)) as opened:
        return list(opened.records(candidates_of(Tree(folder))))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`broken("run_once", error)`: the first call of a step of the job raises `error`."""

    def plant(step: str, error: BaseException, *, always: bool = False) -> None:
        whole, left = getattr(device_worker, step), [error]

        def call(*arguments):
            if left:
                raise left[0] if always else left.pop()
            return whole(*arguments)

        monkeypatch.setattr(device_worker, step, call)

    return plant


@pytest.mark.usefixtures("in_process")
def test_every_record_says_where_it_was_made(tree):
    """Device, target, compiler, runtime and seed."""
    (first, *_) = records_of(tree(), seed=9)
    assert (first.provenance.device, first.provenance.target, first.provenance.seed) == ("null", "null", 9)
    assert first.provenance.iree.startswith("compiler null ") and ", runtime " in first.provenance.iree


@pytest.mark.usefixtures("in_process")
def test_records_come_in_the_order_of_the_manifest_as_they_are_done(tree):
    """Those of the first operation are there before the second begins."""
    made = Tree(tree(*ONLY_DEFAULTS))
    candidates = candidates_of(made)
    with Evaluator(EvaluatorOptions("null")) as opened:
        names = [record.dispatch.name for record in opened.records(candidates)]
        assert names == [each.dispatch.name for each in candidates]
        begun = opened.records(candidates)
        assert next(begun).dispatch.name == names[0]


@pytest.mark.usefixtures("in_process")
def test_a_measured_record_holds_what_was_asked_for(tree):
    """Three samples of at least 1000 executions."""
    (first, *_) = records_of(tree(), measure=MeasureOptions(StopRule(count=3), 1000))
    assert first.measurement is not None
    assert len(first.measurement.samples_ms) == 3 and first.measurement.executions >= 1000


@pytest.mark.usefixtures("in_process")
def test_the_default_options_verify_and_measure(tree):
    """Verification is optional."""
    records = records_of(tree(*ONLY_DEFAULTS))
    assert [(r.verdict, r.measurement is not None) for r in records] == [(Verdict.SUCCESS, True)] * 2


@pytest.mark.usefixtures("in_process")
def test_verification_needs_integers_and_reals(tree, monkeypatch):
    """Both distributions are compared, integers first; then the result of the profile vmfb.

    What equals a result that was right, bit for bit, is not compared again.
    """
    seen, whole = [], device_worker.check
    monkeypatch.setattr(
        device_worker,
        "check",
        lambda expected, *rest: seen.append(expected.distribution.value) or whole(expected, *rest),
    )
    folder = tree(*ONLY_DEFAULTS)
    records_of(folder)
    assert seen == ["integers", "reals", "offset"] * 2

    timed = device_worker.result_of_timed
    monkeypatch.setattr(
        device_worker, "result_of_timed", lambda *rest: (np.nextafter(timed(*rest)[0], np.float32(9)),)
    )
    assert {record.verdict for record in records_of(folder)} == {Verdict.SUCCESS}
    assert seen[6:] == ["integers", "reals", "offset", "reals"] * 2


@pytest.mark.usefixtures("in_process")
def test_only_what_was_right_is_known(tree, monkeypatch):
    """Wrong results that equal each other are all wrong; the same bits in another shape are another result."""
    whole = device_worker.run_once
    monkeypatch.setattr(device_worker, "run_once", lambda *arguments: (whole(*arguments)[0] + np.float32(9),))
    folder = tree(*ONLY_DEFAULTS[:-1])
    records = records_of(folder)
    assert {r.verdict for r in records} == {Verdict.FAILED} and len(records) > 2
    calls = []

    def run_once(*arguments):
        calls.append(arguments)
        found = whole(*arguments)
        return found if len(calls) <= 4 else (found[0].T,)

    monkeypatch.setattr(device_worker, "run_once", run_once)
    first, second, *_ = records_of(folder)
    assert (first.verdict, second.verdict) == (Verdict.SUCCESS, Verdict.FAILED)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("call", "name"), [(0, "integers"), (1, "reals")])
def test_a_wrong_result_on_either_distribution_is_a_failure(tree, monkeypatch, call, name):
    """The reason names the distribution and the seed, so that it can be had again."""
    calls, whole = [], device_worker.run_once

    def run_once(*arguments):
        calls.append(arguments)
        return (whole(*arguments)[0] + (len(calls) == call + 1) * np.float32(9),)

    monkeypatch.setattr(device_worker, "run_once", run_once)
    first, second = records_of(tree(*ONLY_DEFAULTS), seed=5)
    assert (first.verdict, first.measurement) == (Verdict.FAILED, None)
    assert first.reason.startswith("512 of 512 elements are wrong")
    assert first.reason.endswith(f"({name}, seed 5)")
    assert second.verdict is Verdict.SUCCESS


@pytest.mark.usefixtures("in_process")
def test_a_result_of_another_shape_is_a_failure(tree, monkeypatch):
    """It is compared with nothing."""
    whole = device_worker.run_once
    monkeypatch.setattr(device_worker, "run_once", lambda *arguments: (whole(*arguments)[0].T,))
    first, _ = records_of(tree(*ONLY_DEFAULTS))
    assert first.verdict is Verdict.FAILED and first.measurement is None
    assert "result is float32 (32, 16), but should be float32 (16, 32)" in first.reason


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("step", ["run_once", "take_batch", "result_of_timed"])
@pytest.mark.parametrize(
    ("error", "verdict", "reason"),
    [
        (ToolError("the runtime refused"), Verdict.CRASHED, "the runtime refused"),
        (WorkerOutOfMemory("out of memory"), Verdict.CRASHED, "out of memory"),
        (WorkerTimedOut("no answer"), Verdict.TIMED_OUT, "no answer; --timeout sets the limit"),
        (ValueError("surprise"), Verdict.CRASHED, "ValueError: surprise"),
    ],
    ids=["tool", "memory", "time", "other"],
)
def test_a_step_that_breaks_costs_one_dispatch(tree, broken, step, error, verdict, reason):
    """Also after it was verified: what cannot be measured is no success, and the next one runs."""
    broken(step, error)
    first, second = records_of(tree(*ONLY_DEFAULTS))
    assert (first.verdict, first.reason, first.measurement) == (verdict, reason, None)
    assert second.verdict is Verdict.SUCCESS and second.measurement is not None


@pytest.mark.usefixtures("in_process")
def test_a_device_that_does_not_open_again_costs_one_dispatch(tree, broken):
    """After a crash a fresh worker may find no device: a verdict, and the run goes on."""
    broken("run_once", TargetError("no device 'cuda'"))
    first, second = records_of(tree(*ONLY_DEFAULTS))
    assert first.verdict is Verdict.CRASHED and "no device" in first.reason
    assert second.verdict is Verdict.SUCCESS


@pytest.mark.usefixtures("in_process")
def test_a_reference_that_cannot_be_had_is_no_success(tree, broken):
    """Nothing is called correct that was not compared, and the record says why it was not."""
    broken("check", WorkerOutOfMemory("out of memory"), always=True)
    first, _ = records_of(tree(*ONLY_DEFAULTS))
    assert first.verdict is Verdict.NOT_VERIFIED and first.is_failure
    assert first.reason == "the reference could not be computed: out of memory"


@pytest.mark.usefixtures("in_process")
def test_a_slow_dispatch_is_measured_one_by_one(null_tree):
    """Three hundred milliseconds a hundred times are too long for a call: the verify vmfb is used."""
    first, _ = records_of(null_tree(*ONLY_DEFAULTS, faults={"*": {"time_ms": 300.0}}))
    assert first.measurement.executions == 1
    assert first.measurement.samples_ms == pytest.approx((300.0,) * 24)  # four in each of six batches


@pytest.mark.usefixtures("in_process")
def test_a_profile_vmfb_that_computes_something_else_is_a_failure(tree, monkeypatch):
    """What is measured is verified, not only its sibling."""
    whole = device_worker.result_of_timed
    monkeypatch.setattr(
        device_worker, "result_of_timed", lambda *arguments: whole(*arguments) + np.float32(9)
    )
    first, _ = records_of(tree(*ONLY_DEFAULTS))
    assert (first.verdict, first.measurement) == (Verdict.FAILED, None)
    assert first.reason.startswith("in the profile vmfb 512 of 512 elements are wrong")


@pytest.mark.usefixtures("in_process")
def test_a_kernel_from_outside_runs_where_dispatches_do(tree, monkeypatch):
    """`Provider: Triton` is no library: what is launched stands in the vmfb."""
    monkeypatch.setattr(CpuTiles, "provider", "Triton")
    records = records_of(tree(*ONLY_DEFAULTS[:-1]))
    assert {record.provider for record in records} == {"IREE Codegen", "Triton"}
    assert {record.verdict for record in records} <= {Verdict.SUCCESS, Verdict.NOT_APPLIED}


@pytest.mark.usefixtures("in_process")
def test_a_damaged_file_is_looked_at_once(tree):
    """All its dispatches say so; the path is listed once."""
    made = Tree(tree())
    manifest = load_manifest(made)
    path = made.vmfb(manifest.entries[0].operation, "", "profile")
    path.write_bytes(b"damaged")
    source = TreeCandidates(made)
    with Evaluator(EvaluatorOptions("null")) as opened:
        records = list(opened.records(source.candidates(manifest.dispatches())))
    bad = [r for r in records if r.verdict is Verdict.NOT_COMPILED]
    assert source.damaged == [path] and len(bad) == 7 and len(records) == 9
    assert {r.reason for r in bad} == {f"{path.name} is damaged or missing: run compile.py again"}


@pytest.mark.usefixtures("in_process")
def test_a_runtime_whose_version_is_not_known_is_said_to_be_so(tree, monkeypatch):
    """Someone's own build has no package."""

    def unknown(name):
        raise evaluator.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(evaluator.metadata, "version", unknown)
    assert records_of(tree())[0].provenance.iree.endswith("runtime of unknown version")


# -- sample batches --------------------------------------------------------------------------------


def spells(monkeypatch, *factors: float) -> list[str]:
    """Successive batches take so many times as long; returns the dispatches in the order sampled."""
    whole, left, order = device_worker.take_batch, list(factors), []

    def take_batch(modules, name, *arguments):
        found = whole(modules, name, *arguments)
        order.append(name)
        factor = left.pop(0) if left else 1.0
        return replace(found, samples_ms=tuple(factor * sample for sample in found.samples_ms))

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    return order


@pytest.mark.usefixtures("in_process")
def test_a_dispatch_is_visited_again_when_the_others_of_its_operation_have_been(tree, monkeypatch):
    order = spells(monkeypatch)
    records = records_of(tree(), measure=MeasureOptions(StopRule(count=6)))
    names = [record.dispatch.name for record in records]
    assert order == 6 * names
    assert all(len(record.measurement.samples_ms) == 6 for record in records)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("mode", "held_bytes", "are_in_turn"),
    [(Mode.WARM, 2**29, True), (Mode.WARM, 0, False), (Mode.COLD, 2**29, False)],
)
def test_operations_with_few_dispatches_are_sampled_in_turn_if_memory_holds_them(
    null_tree, monkeypatch, mode, held_bytes, are_in_turn
):
    monkeypatch.setattr(device_worker, "HELD_BYTES", held_bytes)
    order = spells(monkeypatch)
    folder = null_tree(*ONLY_DEFAULTS)
    records = records_of(folder, measure=MeasureOptions(StopRule(count=6), mode=mode))
    first, second = (record.dispatch.name for record in records)
    assert order == (6 * [first, second] if are_in_turn else 6 * [first] + 6 * [second])


@pytest.mark.usefixtures("in_process")
def test_a_slow_spell_of_the_machine_spoils_no_figure(null_tree, monkeypatch):
    """The first batch takes twice as long, so it is not precise; then many others agree."""
    spells(monkeypatch, 2.0)
    first, _ = records_of(null_tree(*ONLY_DEFAULTS, faults={"*": {"time_ms": 1.0}}))
    assert first.measurement.median_ms == pytest.approx(1.0)
    assert first.measurement.samples_ms[:4] == pytest.approx((2.0,) * 4)
    assert first.measurement.warnings == ()


@pytest.mark.usefixtures("in_process")
def test_visits_that_agree_among_themselves_only_are_told(null_tree, monkeypatch):
    spells(monkeypatch, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5)
    folder = null_tree(*ONLY_DEFAULTS[1:], "--problem-m=16", faults={"*": {"time_ms": 1.0}})
    (first,) = records_of(folder, measure=MeasureOptions(StopRule(count=18)))
    assert first.measurement.warnings == ("drifted by +50% during the measurement",)
    assert first.measurement.interval_ms == pytest.approx((1.0, 1.5))


@pytest.mark.usefixtures("in_process")
def test_what_breaks_in_a_later_visit_costs_one_dispatch(tree, monkeypatch):
    whole, calls = device_worker.take_batch, []

    def take_batch(*arguments):
        calls.append(arguments)
        if len(calls) == 3:  # the second batch of the first
            raise WorkerTimedOut("no answer within 1 s")
        return whole(*arguments)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    folder = tree(*ONLY_DEFAULTS)
    verdicts = [record.verdict for record in records_of(folder)]
    assert verdicts == [Verdict.TIMED_OUT, Verdict.SUCCESS]


#: As in a search: sample batches of several dispatches come from one request.
TOGETHER = MeasureOptions(StopRule(count=6), keeps_disturbed=True)


def requests(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[int]:
    """The number of sample batches in each request; the first requests raise `errors`."""
    whole, counts, left = device_worker.take_batches, [], list(errors)

    def take_batches(requested):
        counts.append(len(requested))
        if left:
            raise left.pop(0)
        return whole(requested)

    monkeypatch.setattr(device_worker, "take_batches", take_batches)
    return counts


@pytest.mark.usefixtures("in_process")
def test_sample_batches_of_a_turn_may_come_from_one_request(tree, monkeypatch):
    order, counts = spells(monkeypatch), requests(monkeypatch)
    records = records_of(tree(), measure=TOGETHER)
    assert order == 6 * [record.dispatch.name for record in records]
    assert counts == 6 * [len(records)]
    assert all(record.verdict is Verdict.SUCCESS for record in records)
    assert all(len(record.measurement.samples_ms) == 6 for record in records)


@pytest.mark.usefixtures("in_process")
def test_what_breaks_in_a_request_costs_one_dispatch(tree, monkeypatch, broken):
    counts = requests(monkeypatch)
    broken("take_batch", ToolError("broken"))
    first, second = records_of(tree(*ONLY_DEFAULTS), measure=TOGETHER)
    assert (first.verdict, first.reason, first.measurement) == (Verdict.CRASHED, "broken", None)
    assert second.verdict is Verdict.SUCCESS and len(second.measurement.samples_ms) == 6
    assert counts == [2, 1, 1, 1, 1, 1]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("error", [WorkerTimedOut("no answer"), WorkerOutOfMemory("out of memory")])
def test_a_request_that_the_process_does_not_answer_is_made_for_each_dispatch(tree, monkeypatch, error):
    counts, order = requests(monkeypatch, error), spells(monkeypatch)
    records = records_of(tree(*ONLY_DEFAULTS), measure=TOGETHER)
    assert [record.verdict for record in records] == [Verdict.SUCCESS] * 2
    assert counts == 6 * [2] and order == 6 * [record.dispatch.name for record in records]


@pytest.mark.usefixtures("in_process")
def test_vmfbs_that_a_process_does_not_hold_at_once_are_measured_one_by_one(tree, monkeypatch):
    monkeypatch.setattr(device_worker, "VMFB_BYTES", 0)
    counts = requests(monkeypatch)
    records = records_of(tree(*ONLY_DEFAULTS), measure=TOGETHER)
    assert [record.verdict for record in records] == [Verdict.SUCCESS] * 2 and not counts


@pytest.mark.usefixtures("in_process")
def test_both_vmfbs_are_verified_before_a_request(tree, monkeypatch):
    counts = requests(monkeypatch)
    whole = device_worker.result_of_timed
    monkeypatch.setattr(
        device_worker, "result_of_timed", lambda *arguments: whole(*arguments) + np.float32(9)
    )
    first, second = records_of(tree(*ONLY_DEFAULTS), measure=TOGETHER)
    assert first.verdict is second.verdict is Verdict.FAILED and not counts


@pytest.mark.usefixtures("in_process")
def test_a_candidate_that_was_verified_ahead_is_only_measured(tree, monkeypatch):
    """Once: when it comes again, it is verified again."""
    steps: list[str] = []
    for step in ("run_once", "take_batch"):
        whole = getattr(device_worker, step)
        monkeypatch.setattr(
            device_worker, step, lambda *given, call=whole, name=step: steps.append(name) or call(*given)
        )
    (candidate,) = candidates_of(Tree(tree(*ONLY_DEFAULTS[1:], "--problem-m=16")))
    with Evaluator(EvaluatorOptions("null", measure=TOGETHER)) as opened:
        opened.verify(candidate)
        assert "run_once" in steps and "take_batch" not in steps
        steps.clear()
        (record,) = opened.records([candidate])
        assert record.verdict is Verdict.SUCCESS and steps == 6 * ["take_batch"]
        (record,) = opened.records([candidate])
        assert record.verdict is Verdict.SUCCESS and "run_once" in steps


@pytest.mark.usefixtures("in_process")
def test_what_breaks_ahead_has_its_verdict(tree, broken):
    broken("run_once", ToolError("broken"))
    (candidate,) = candidates_of(Tree(tree(*ONLY_DEFAULTS[1:], "--problem-m=16")))
    with Evaluator(EvaluatorOptions("null", measure=TOGETHER)) as opened:
        opened.verify(candidate)
        (record,) = opened.records([candidate])
    assert (record.verdict, record.reason, record.measurement) == (Verdict.CRASHED, "broken", None)


@pytest.mark.usefixtures("in_process")
def test_what_depends_on_times_is_not_verified_ahead(tree, broken):
    broken("run_once", ToolError("broken"))
    candidates = candidates_of(Tree(tree(*ONLY_DEFAULTS)))
    with Evaluator(EvaluatorOptions("null")) as opened:
        opened.verify(candidates[0])
        first, second = opened.records(candidates)
    assert (first.verdict, second.verdict) == (Verdict.CRASHED, Verdict.SUCCESS)


@pytest.mark.usefixtures("in_process")
def test_interrupted_those_that_were_visited_are_kept(tree, monkeypatch):
    """And say that they were to be visited again."""
    whole, calls = device_worker.take_batch, []

    def take_batch(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    made, found = Tree(tree()), []
    with Evaluator(EvaluatorOptions("null")) as opened, pytest.raises(KeyboardInterrupt):
        for record in opened.records(candidates_of(made)):
            found.append(record)
    assert [record.measurement.ended_by for record in found] == ["interrupted"] * 2


class LoadedMachine:
    """Time passes only in calls of the null device, and a changing part of it other processes have the core."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waited = 0.0
        self._draw = random.Random(1)

    def slowed(self, whole: Callable[[NullCall, int], float]) -> Callable[[NullCall, int], float]:
        def time(call: NullCall, calls: int) -> float:
            wanted = whole(call, calls)
            waited = wanted * self._draw.uniform(1.0, 9.0) + 2e-3
            self.seconds += wanted + waited
            self.waited += waited
            return wanted + waited

        return time


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> LoadedMachine:
    found = LoadedMachine()
    start = device_worker.start

    def start_loaded(uri: str, build_dir: str) -> None:
        start(uri, build_dir)
        device_worker.STATE.run_delay = lambda: found.waited

    monkeypatch.setattr(device_worker, "start", start_loaded)
    monkeypatch.setattr(device_worker.STATE, "clock", lambda: found.seconds)
    monkeypatch.setattr(NullCall, "time", found.slowed(NullCall.time))
    monkeypatch.setattr(NullCall, "now", property(lambda _: lambda: found.seconds))
    return found


def records_within(folder: Path, machine: LoadedMachine, rule: StopRule) -> list[Record]:
    tree = Tree(folder)
    options = EvaluatorOptions("null", measure=MeasureOptions(rule))
    with Evaluator(options, clock=lambda: machine.seconds) as evaluator:
        return list(evaluator.records(TreeCandidates(tree).candidates(load_manifest(tree).dispatches())))


@pytest.mark.some(2)
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("budget", "time_ms"),
    [(0.25, 0.002), (1.0, 0.002), (4.0, 0.002), (1.0, 0.2), (1.0, 0.5), (1.0, 2.0), (1.0, 10.0)],
)
def test_ten_dispatches_take_at_most_twice_their_budgets(
    null_tree, machine: LoadedMachine, budget: float, time_ms: float
):
    """Tiny ones, and slow ones: a call of a hundred executions takes seconds, one execution up to 0.1 s."""
    shapes = ("--problem-m=1:10", "--problem-n=8", "--problem-k=8", "--lhs=f32", "--default-config=only")
    folder = null_tree(*shapes, faults={"*": {"time_ms": time_ms}})

    records = records_within(folder, machine, StopRule(seconds=budget))

    assert len(records) == 10
    assert machine.seconds <= 2.0 * 10 * budget
    for record in records:
        assert record.verdict is Verdict.SUCCESS and record.measurement is not None
        assert len(record.measurement.samples_ms) >= 3
        assert record.measurement.ended_by in ("budget", "interval")
        assert any("other processes used a core that was needed" in w for w in record.measurement.warnings)


@pytest.mark.usefixtures("in_process")
def test_a_number_of_samples_is_taken_however_long_it_takes(null_tree, machine: LoadedMachine):
    shapes = ("--problem-m=1", "--problem-n=8", "--problem-k=8", "--lhs=f32", "--default-config=only")
    folder = null_tree(*shapes, faults={"*": {"time_ms": 0.002}})

    (record,) = records_within(folder, machine, StopRule(seconds=0.01, count=24))

    assert record.measurement is not None and len(record.measurement.samples_ms) == 24


OPERATION = Matmul(16, 32, 8)
SLOW, FAST = CpuTiles((16, 32), (8, 16, 1)), CpuTiles((16, 32), (8, 32, 1))
RULES = (
    Rule("*_default", time_ms=1.0),
    Rule(f"*{SLOW.name}", time_ms=90.0),
    Rule(f"*{FAST.name}", time_ms=0.5),
)


def candidates(
    compiler: Compiler,
    operation: Operation,
    configurations: Sequence[Configuration],
    target: str,
    repeat: int,
) -> list[Candidate]:
    """Compile a module in memory."""
    dispatches = tuple(Dispatch(operation, each) for each in configurations)
    flags = parse_target(target).compile_flags
    built = compiler.build(BuildRequest(render_module(operation, dispatches), dispatches, flags, repeat))
    verify, profile = Vmfb.of(built.verify), Vmfb.of(built.profile)
    return [
        Candidate(dispatch, target, verify, profile, repeat, outcome.state, outcome.reason, compiler.revision)
        for dispatch in dispatches
        for outcome in [built.outcomes[dispatch.name]]
    ]


def in_null(*configurations: Configuration) -> list[Candidate]:
    return candidates(NullCompiler(RULES), OPERATION, configurations, "null", 10)


@pytest.mark.usefixtures("in_process")
def test_the_best_result_persists_from_batch_to_batch():
    """The default is in the first batch only; a candidate of the second is given up against it."""
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        assert evaluator.best(OPERATION) is None
        (default,) = evaluator.records(in_null(Default()))
        assert evaluator.best(OPERATION) == default
        (slow,) = evaluator.records(in_null(SLOW))
        assert evaluator.best(OPERATION) == default
        assert evaluator.best(Matmul(1, 1, 1)) is None
        (fast,) = evaluator.records(in_null(FAST))
        assert evaluator.best(OPERATION) == fast

    assert [record.verdict for record in (default, slow, fast)] == [Verdict.SUCCESS] * 3
    assert slow.measurement.ended_by == "abandoned"
    assert (default.measurement.ended_by, fast.measurement.ended_by) == ("interval", "interval")
    assert not list(Path().iterdir())  # nothing was written

    with Evaluator(EvaluatorOptions("null")) as alone:
        (slow,) = alone.records(in_null(SLOW))
    assert slow.measurement.ended_by == "interval"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("slower", "ended_by"), [(1.0, "abandoned"), (1.5, "budget")])
def test_on_a_machine_that_became_slower_nothing_is_abandoned(monkeypatch, slower, ended_by):
    """The best dispatch is sampled again beside each group, and tells."""
    rule = StopRule(0.02, abandon=1.05, by_decile=True)
    options = EvaluatorOptions("null", measure=MeasureOptions(rule, keeps_disturbed=True))
    whole, factor, order = device_worker.take_batch, [1.0], []

    def take_batch(refs, name, *others):
        order.append(name)
        found = whole(refs, name, *others)
        return replace(found, samples_ms=tuple(factor[0] * each for each in found.samples_ms))

    monkeypatch.setattr(device_worker, "take_batch", take_batch)
    with Evaluator(options) as evaluator:
        (fast,) = evaluator.records(in_null(FAST))
        assert set(order) == {fast.dispatch.name}
        order.clear()
        factor[0] = slower
        (slow,) = evaluator.records(in_null(SLOW))
        assert order.count(fast.dispatch.name) == order.count(slow.dispatch.name)
    assert slow.measurement.ended_by == ended_by


@pytest.mark.usefixtures("in_process")
def test_what_fails_is_never_the_best():
    wrong = (Rule(f"*{FAST.name}", fault="wrong_element", time_ms=0.1), *RULES)
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        default, failed = evaluator.records(
            candidates(NullCompiler(wrong), OPERATION, [Default(), FAST], "null", 10)
        )
        assert evaluator.best(OPERATION) == default

    assert failed.verdict is Verdict.FAILED


@pytest.mark.usefixtures("in_process")
def test_no_record_names_a_command_line_that_could_not_make_it_again():
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        (record,) = evaluator.records(in_null(Default()))
    assert record.reproduce == ""


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_a_real_matmul_is_compiled_verified_and_measured_without_a_tree(monkeypatch):
    """Both vmfbs of a module reach the process once, however many candidates and sample batches it has."""
    sent: list[int] = []
    whole = Worker.call

    def call(worker: Worker, function, *arguments, **options):
        if function is device_worker.receive:
            sent.append(len(arguments[1]))
        return whole(worker, function, *arguments, **options)

    monkeypatch.setattr(Worker, "call", call)
    operation, tiles = Matmul(32, 64, 16), CpuTiles((16, 32), (8, 16, 1))
    options = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(count=6)))
    with Evaluator(options) as evaluator:
        records = []
        for batch in ([Default()], [tiles]):
            made = candidates(IreeCompiler(), operation, batch, "llvm-cpu", 10)
            records += [*evaluator.records(made), *evaluator.records(made)]
        best = evaluator.best(operation)

    assert [record.verdict for record in records] == [Verdict.SUCCESS] * 4, [r.reason for r in records]
    assert all(record.measurement and record.measurement.median_ms > 0 for record in records)
    assert best in records
    assert len(sent) == 4
    assert not list(Path().iterdir())


# -- shared hashes ---------------------------------------------------------------------------------


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Expected]:
    """What results were compared with, in order."""
    compared: list[Expected] = []
    whole = device_worker.check

    def check(expected, arrays):
        compared.append(expected)
        return whole(expected, arrays)

    monkeypatch.setattr(device_worker, "check", check)
    return compared


@pytest.mark.usefixtures("in_process")
def test_what_another_evaluator_has_verified_is_not_compared_again(tree, checks):
    """Of a kernel that computes the same bits. With another seed, they are other bits of other inputs."""
    candidates, hashes = candidates_of(Tree(tree(*ONLY_DEFAULTS))), VerifiedHashes()
    for seed, count in ((1, True), (1, False), (2, True)):
        checks.clear()
        with Evaluator(EvaluatorOptions("null", seed=seed), hashes=hashes) as opened:
            assert {each.verdict for each in opened.records(candidates)} == {Verdict.SUCCESS}
            opened.prepare(candidates[0].dispatch.operation)
        assert bool(checks) == count
