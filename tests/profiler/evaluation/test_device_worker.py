"""What the worker processes do, called in this one, and how packed weights are measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.compiler import BuildRequest, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import Configuration, Default, Formed, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, ToolError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import Conv2d, Distribution, Matmul
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.compare.live import winners
from dispatch_profiler.profiler.compare.pairing import By, CompareOptions, compare_records
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import (
    Candidate,
    EvaluatorOptions,
    Vmfb,
    VmfbRef,
    VmfbRefs,
)
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import Measurement, MeasureOptions, Mode, included_text
from dispatch_profiler.profiler.measurement.sample_batches import BatchPlan, joined, next_batch
from dispatch_profiler.profiler.records.record import Record, Verdict, as_stored
from dispatch_profiler.profiler.report.console import block, table
from dispatch_profiler.profiler.report.html import grouped
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import Expected, compare_result
from dispatch_profiler.runtime import RunError
from dispatch_profiler.runtime.null import NullCall, NullDevice, NullProgram

OPERATION = Matmul(4, 6, 8)
NAME = Dispatch(OPERATION, Default()).name
SEED = 3

pytestmark = pytest.mark.usefixtures("in_process")


def modules(tmp_path: Path, *, repeat: int = 10, **rule: object) -> tuple[VmfbRef, VmfbRef]:
    """verify and profile of one dispatch, compiled under one rule."""
    compiler = NullCompiler((Rule("*", **rule),))
    built = compiler.build(BuildRequest("", (Dispatch(OPERATION, Default()),), (), repeat))
    made = []
    for vmfb, times in ((built.verify, 1), (built.profile, repeat)):
        device_worker.receive(sha256(vmfb), vmfb)
        made.append(VmfbRef(sha256(vmfb), times))
    return made[0], made[1]


def plan(options: MeasureOptions) -> BatchPlan:
    """All samples in one batch."""
    return replace(next_batch(options, (), None), most=options.stop.count)


def samples(tmp_path: Path, options: MeasureOptions, *, repeat: int = 10, **rule: object) -> Measurement:
    """One sample batch."""
    device_worker.start("null", "")
    made = VmfbRefs(*modules(tmp_path, repeat=repeat, **rule))
    return joined(options, [device_worker.take_batch(made, NAME, OPERATION, SEED, plan(options))])


# -- the sentinel ----------------------------------------------------------------------------------


def test_the_first_short_kernel_is_the_sentinel(tmp_path):
    """With one of 80 ms, watching the machine would take longer than measuring."""
    device_worker.STATE.sentinel = None
    for milliseconds, count in ((80.0, 0), (1.0, 1)):
        samples(tmp_path, MeasureOptions(StopRule(count=1)), time_ms=milliseconds)
        assert len(device_worker.sentinel_samples(1, 0.1)) == count


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", list(Distribution))
def test_one_run_gives_the_result_for_the_drawn_inputs(tmp_path, distribution):
    """Shape, type and values are those of the operation under this seed."""
    device_worker.start("null", "")
    (actual,) = device_worker.run_once(modules(tmp_path)[0], NAME, OPERATION, distribution, SEED)
    assert compare_result(
        OPERATION.result, actual, reference(OPERATION, draw(OPERATION, distribution, SEED))
    ).passed
    assert not compare_result(
        OPERATION.result, actual, reference(OPERATION, draw(OPERATION, distribution, SEED + 1))
    ).passed


def test_a_vmfb_that_was_not_sent_is_not_run():
    stale = VmfbRef(sha256(b"what was compiled"), 1)
    device_worker.start("null", "")
    with pytest.raises(ToolError, match="does not hold the vmfb"):
        device_worker.run_once(stale, NAME, OPERATION, Distribution.REALS, SEED)


def test_the_vmfbs_that_were_used_longest_ago_are_dropped(monkeypatch):
    monkeypatch.setattr(device_worker.STATE, "vmfb_bytes", 10)
    for name in "abc":
        device_worker.receive(name, bytes(4))
    assert device_worker.missing_vmfbs("abc") == ["a"]
    device_worker.missing_vmfbs("b")  # used again
    device_worker.receive("d", bytes(9))
    assert device_worker.missing_vmfbs("abcd") == ["a", "c"]  # two are kept, whatever their size


def test_vmfbs_are_told_apart_by_their_content(tmp_path):
    device_worker.start("null", "")
    right = device_worker.run_once(modules(tmp_path)[0], NAME, OPERATION, Distribution.REALS, SEED)
    wrong = device_worker.run_once(
        modules(tmp_path, fault="nan")[0], NAME, OPERATION, Distribution.REALS, SEED
    )
    assert np.isfinite(right).all() and not np.isfinite(wrong).all()


def test_a_function_that_is_not_there_is_an_error_of_the_run(tmp_path):
    """The session makes it a verdict."""
    device_worker.start("null", "")
    with pytest.raises(RunError, match="no function missing"):
        device_worker.run_once(modules(tmp_path)[0], "missing", OPERATION, Distribution.REALS, SEED)


def test_a_device_that_does_not_exist_does_not_start():
    """The message names it and the drivers that there are."""
    with pytest.raises(TargetError, match="no device 'nonsense'") as caught:
        device_worker.start("nonsense", "")
    assert "local-task" in caught.value.hint


# -- samples ---------------------------------------------------------------------------------------


def test_samples_are_taken_from_the_profile_vmfb(tmp_path):
    """Calls of ten executions: a batch of 25 takes three of them."""
    measurement = samples(tmp_path, MeasureOptions(StopRule(count=4), 25), time_ms=0.5)
    assert measurement.executions == 30
    assert measurement.samples_ms == pytest.approx((0.5,) * 4)


def test_the_result_of_what_is_timed_can_be_had(tmp_path):
    """The profile vmfb is verified too, not only its sibling; unless it takes so long that it is not used."""
    device_worker.start("null", "")
    (tmp_path / "wrong").mkdir()
    verify, (_, wrong) = modules(tmp_path)[0], modules(tmp_path / "wrong", fault="nan")
    arguments = VmfbRefs(verify, wrong), NAME, OPERATION, SEED
    right = reference(OPERATION, draw(OPERATION, Distribution.REALS, SEED))
    for mode, single_seconds, passes in (
        (Mode.WARM, 0.0, False),
        (Mode.WARM, 9.0, True),
        (Mode.COLD, 0.0, True),
    ):
        options = MeasureOptions(mode=mode)
        (result,) = device_worker.result_of_timed(*arguments, options, single_seconds)
        assert compare_result(OPERATION.result, result, right).passed is passes


def test_the_estimate_is_that_of_a_warm_execution(tmp_path, monkeypatch):
    """A first run that takes 30 ms longer, as on a GPU, does not make a dispatch slow."""
    warm, whole = set(), NullCall.time

    def time(call, calls):
        cold = 0.0 if id(call) in warm else 0.03
        warm.add(id(call))
        return whole(call, calls) + cold

    monkeypatch.setattr(NullCall, "time", time)
    device_worker.start("null", "")
    verify, _ = modules(tmp_path, time_ms=0.5)
    assert device_worker.estimate(verify, NAME, OPERATION, SEED) == pytest.approx(0.0005)


def test_a_dispatch_without_any_time_is_measured(tmp_path):
    """A clock that does not move ends nothing."""
    assert samples(tmp_path, MeasureOptions(StopRule(count=3)), time_ms=0.0).samples_ms == (0.0, 0.0, 0.0)


def cold(monkeypatch, tmp_path: Path, **rule: object):
    """A cold measurement, and on which operands each call was."""
    bound, whole = [], NullProgram.bind

    def bind(program, function, *operands):
        bound.append(operands)
        return whole(program, function, *operands)

    monkeypatch.setattr(NullProgram, "bind", bind)
    options = MeasureOptions(StopRule(count=4), mode=Mode.COLD)
    return samples(tmp_path, options, **rule), max(bound, key=len)


def test_cold_samples_are_single_executions_on_operands_that_no_cache_holds(tmp_path, monkeypatch):
    """The null device claims caches of 1 MiB."""
    measurement, operands = cold(monkeypatch, tmp_path, time_ms=0.5)
    assert measurement.mode == "cold"
    assert measurement.samples_ms == pytest.approx((0.5,) * 4)
    assert len(set(map(id, operands))) == len(operands)
    assert (len(operands) - 1) * OPERATION.bytes >= 3 * 2**20


def test_what_a_single_call_costs_is_taken_off_a_cold_sample(tmp_path, monkeypatch):
    """A call that costs 0.1 ms beside its executions, of 0.5 ms each."""
    whole = NullCall.time
    monkeypatch.setattr(NullCall, "time", lambda call, calls: whole(call, calls) + 1e-4 * calls)
    measurement, _ = cold(monkeypatch, tmp_path, repeat=100, time_ms=0.5)
    assert measurement.samples_ms == pytest.approx((0.5,) * 4)
    assert measurement.overhead_ms == pytest.approx(0.1)


def test_a_cold_sample_is_never_shorter_than_a_warm_execution(tmp_path, monkeypatch):
    """While it is measured what a call costs, that is 0.1 ms; in the samples it is 0.01 ms."""
    whole, measure_overhead = NullCall.time, device_worker.measure_overhead
    cost = [1e-5]

    def measured_on_a_busy_machine(*arguments):
        cost[0] = 1e-4
        found = measure_overhead(*arguments)
        cost[0] = 1e-5
        return found

    monkeypatch.setattr(NullCall, "time", lambda call, calls: whole(call, calls) + calls * cost[0])
    monkeypatch.setattr(device_worker, "measure_overhead", measured_on_a_busy_machine)
    measurement, _ = cold(monkeypatch, tmp_path, repeat=100, time_ms=0.05)

    assert measurement.samples_ms == pytest.approx((0.05,) * 4)
    assert measurement.overhead_ms == pytest.approx(0.01)


def test_cold_caches_cannot_be_had_where_nobody_knows_them(tmp_path, monkeypatch):
    monkeypatch.setattr(NullDevice, "cache_bytes", 0)
    with pytest.raises(RunError, match="unknown: measure with --mode=warm"):
        samples(tmp_path, MeasureOptions(StopRule(count=3), mode=Mode.COLD))


# -- checking --------------------------------------------------------------------------------------


def test_the_checker_finds_right_and_wrong(tmp_path):
    """It compares with the reference for the same seed, which it keeps on disk."""
    device_worker.start_checker(str(tmp_path / "cache"), SEED)
    right = reference(OPERATION, draw(OPERATION, Distribution.INTEGERS, SEED)).expected
    assert device_worker.check(Expected(OPERATION, Distribution.INTEGERS), (right,)).passed
    assert not device_worker.check(Expected(OPERATION, Distribution.INTEGERS), (right + 1,)).passed
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 1


def test_the_checker_applies_the_bound_of_a_form(tmp_path):
    """Integers are exact in the direct form, and rounded in Winograd's."""
    operation = Conv2d(1, 6, 6, 4, 4, 3, 3)
    bound = Formed("winograd").error_bound(operation)
    device_worker.start_checker(str(tmp_path / "cache"), SEED)
    right = operation.reference(draw(operation, Distribution.INTEGERS, SEED))[0].expected
    near, direct = np.nextafter(right, np.float32(np.inf)), Expected(operation, Distribution.INTEGERS)
    formed = replace(direct, error_bound=bound)
    assert not device_worker.check(direct, (near,)).passed
    assert device_worker.check(formed, (near,)).passed
    assert not device_worker.check(formed, (right + 1,)).passed


PACKED_PRODUCT = Matmul(16, 32, 8, rhs_layout="n")
PACKED, PLAIN = Formed("permuted", packed=True), Formed("permuted")
RULES = (
    Rule("*_packed_*", time_ms=0.25),
    Rule("*_permuted_default", time_ms=0.5),
    Rule("*_default", time_ms=1.0),
)


def records(
    *configurations: Configuration, options: EvaluatorOptions = EvaluatorOptions("null")
) -> list[Record]:
    """The records of candidates of one evaluator, each in a module of its own."""
    candidates = []
    for configuration in configurations:
        dispatch = Dispatch(PACKED_PRODUCT, configuration)
        built = NullCompiler(RULES).build(BuildRequest("", (dispatch,), (), 10))
        candidates.append(Candidate(dispatch, "null", Vmfb.of(built.verify), Vmfb.of(built.profile), 10))
    with Evaluator(options) as evaluator:
        return [record for each in candidates for record in evaluator.records([each])]


@pytest.mark.parametrize("packed", [PACKED, Tuned(PACKED)], ids=["form", "library entry"])
def test_the_time_of_a_packed_weight_excludes_packing_it(packed):
    """Calls of single executions would pack, so that the overhead of a call is unknown, and is not subtracted."""
    plain, found = records(PLAIN, packed)

    assert included_text(plain.measurement.includes) == "kernels; fills and copies; weight conversion"
    assert included_text(found.measurement.includes) == "kernels; fills and copies; call"
    assert found.measurement.samples_ms == pytest.approx([0.25] * len(found.measurement.samples_ms))


def test_a_comparison_with_an_unpacked_time_is_marked():
    plain, packed = (as_stored(record) for record in records(PLAIN, PACKED))

    (pair,) = compare_records([plain], [packed], CompareOptions(by=By.OPERATION)).pairs

    assert "only base includes weight conversion" in pair.reason


def test_a_packed_weight_is_never_the_best():
    """Neither for abandoning others, nor in the report, nor for --confirm."""
    found = [as_stored(record) for record in records(Default(), PACKED, PLAIN)]

    assert [record.measurement.ended_by for record in found] == ["interval"] * 3
    (group,) = grouped(found)
    assert group.best and group.best.record.configuration == PLAIN.name
    ((_, confirmed),) = winners(found, [record.dispatch for record in found])
    assert confirmed.configuration == PLAIN.name


def test_the_console_says_what_the_time_of_a_packed_weight_lacks():
    every = records(PLAIN, PACKED)
    note = "packed at load time, which other times include"

    assert [note in block(record) for record in every] == [False, True]
    assert table(every).count(note) == 1


def test_an_evaluator_knows_the_best_without_packed_weights():
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        evaluator.learn(records(PLAIN, PACKED))
        best = evaluator.best(PACKED_PRODUCT)

    assert best is not None and best.dispatch.configuration == PLAIN


def test_a_packed_weight_has_no_cold_time():
    """There is one packed weight for all places of the operands, so that the caches hold it."""
    cold = EvaluatorOptions("null", measure=MeasureOptions(mode=Mode.COLD))

    (found,) = records(PACKED, options=cold)

    assert found.verdict is Verdict.NOT_SUPPORTED
    assert "use --mode=warm" in found.reason


def test_however_long_a_call_takes_it_is_not_timed_with_packing():
    """The verify vmfb, which is timed instead of very long calls, would pack in every one."""
    device_worker.start("null", "")
    dispatch, refs = Dispatch(PACKED_PRODUCT, PACKED), []
    for fault in ("nan", ""):
        built = NullCompiler((Rule("*", fault=fault),)).build(BuildRequest("", (dispatch,), (), 10))
        device_worker.receive(sha256(built.profile), built.profile)
        refs.append(VmfbRef(sha256(built.profile), 10))

    (found,) = device_worker.result_of_timed(
        VmfbRefs(*refs, packs_weight=True), dispatch.name, PACKED_PRODUCT, 3, MeasureOptions(), 1e3
    )

    right = reference(PACKED_PRODUCT, draw(PACKED_PRODUCT, Distribution.REALS, 3))
    assert compare_result(PACKED_PRODUCT.result, found, right).passed
