"""Packed weights are measured without packing, say so, and never count as the best of an operation."""

from __future__ import annotations

import pytest

from dispatch_profiler.compiler import BuildRequest, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import Configuration, Default, Formed, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import Distribution, Matmul
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
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, Mode, included_text
from dispatch_profiler.profiler.records.record_file import Record, Verdict, as_stored
from dispatch_profiler.profiler.report.console import block, table
from dispatch_profiler.profiler.report.html import grouped
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result

OPERATION = Matmul(16, 32, 8, rhs_layout="n")
PACKED, PLAIN = Formed("permuted", packed=True), Formed("permuted")
RULES = (
    Rule("*_packed_*", time_ms=0.25),
    Rule("*_permuted_default", time_ms=0.5),
    Rule("*_default", time_ms=1.0),
)

pytestmark = pytest.mark.usefixtures("in_process")


def records(
    *configurations: Configuration, options: EvaluatorOptions = EvaluatorOptions("null")
) -> list[Record]:
    """The records of candidates of one evaluator, each in a module of its own."""
    candidates = []
    for configuration in configurations:
        dispatch = Dispatch(OPERATION, configuration)
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
        best = evaluator.best(OPERATION)

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
    dispatch, refs = Dispatch(OPERATION, PACKED), []
    for fault in ("nan", ""):
        built = NullCompiler((Rule("*", fault=fault),)).build(BuildRequest("", (dispatch,), (), 10))
        device_worker.receive(sha256(built.profile), built.profile)
        refs.append(VmfbRef(sha256(built.profile), 10))

    (found,) = device_worker.result_of_timed(
        VmfbRefs(*refs, packs_weight=True), dispatch.name, OPERATION, 3, MeasureOptions(), 1e3
    )

    right = reference(OPERATION, draw(OPERATION, Distribution.REALS, 3))
    assert compare_result(OPERATION.result, found, right).passed
