"""The kernels of an operation that are worth measuring, and the choice between them, which is kept for the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.boo.kernels import variants
from dispatch_profiler.boo.kernels.variants import MOST_CANDIDATES, LaunchTuning
from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.configurations import (
    Configuration,
    Default,
    Formed,
    Microkernel,
    Tuned,
    rejection_reason,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Conv2d, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import fastest_form, packed_winograd, parse_target

CPU = parse_target("llvm-cpu")
FHWC = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
#: What the rule says, the fastest first: the next best one has the same register tile.
RANKED = tuple(
    Microkernel(distribution, registers, packed=True)
    for distribution, registers in (
        ((7, 64), (1, 14, 32)),
        ((14, 64), (1, 14, 32)),
        ((7, 64), (1, 4, 64)),
        ((4, 64), (1, 4, 64)),
    )
)


@pytest.fixture(autouse=True)
def _ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule on machines with any vectors and any number of threads."""
    monkeypatch.setattr(variants, "packed_microkernel", lambda operation, target: RANKED[0])
    monkeypatch.setattr(variants, "ranked_microkernels", lambda operation, target: RANKED)


def candidates(
    operation: Operation, tuning: LaunchTuning = LaunchTuning(), *, packs: bool = True
) -> list[Configuration]:
    found = tuning.candidates(operation, CPU, packs_weight=packs)
    first = next(tuning.variants(operation, CPU, packs_weight=packs))
    assert found[0] == first
    return [each.dispatch.configuration for each in found]


def test_a_constant_weight_is_packed_in_four_ways() -> None:
    """The rule's choice, the next one with another register tile, Winograd's form, and the fastest other form."""
    form = fastest_form(FHWC, CPU, packed_weights=True)
    assert form is not None
    expected = [RANKED[0], RANKED[2], packed_winograd(FHWC, CPU), form.with_packed_weight(FHWC)]
    assert candidates(FHWC) == expected
    assert all(rejection_reason(each, FHWC, CPU.limits) is None for each in candidates(FHWC))


def test_without_winograd_another_division_is_the_last_one() -> None:
    operation = replace(FHWC, r=1, s=1, padding=(0, 0))
    form = fastest_form(operation, CPU, packed_weights=True)
    assert form is not None
    assert candidates(operation) == [RANKED[0], RANKED[2], form.with_packed_weight(operation), RANKED[1]]


@pytest.mark.parametrize("entry", [Formed("winograd", packed=True), RANKED[2]])
def test_what_the_library_has_comes_first_and_once(entry: Configuration) -> None:
    revision, faster = IreeCompiler().revision, Estimate(2.0, 1.9, 2.1)
    provenance = Provenance("local-task", "llvm-cpu", f"compiler {revision}, runtime 3.13.0", 7)
    library = Library([Entry(Dispatch(FHWC, entry), faster, faster, provenance)])
    found = candidates(FHWC, LaunchTuning(TunedConfigurations(library, CPU, revision)))
    assert found[0] == Tuned(entry) and len(found) == MOST_CANDIDATES
    assert entry not in found and found[1] == RANKED[0]


def test_a_weight_that_may_change_is_packed_by_none() -> None:
    found = candidates(FHWC, packs=False)
    assert found == [fastest_form(FHWC, CPU)]


@pytest.mark.parametrize("operation", [LayerNorm(8, 16), Matmul(16, 16, 16)])
def test_the_default_is_alone(operation: Operation) -> None:
    assert candidates(operation, packs=False) == [Default()]


def test_a_tuning_spec_is_the_choice_of_the_user(tmp_path: Path) -> None:
    assert candidates(FHWC, LaunchTuning(flags=("--spec",))) == [Default()]


def test_gpus_have_one() -> None:
    found = LaunchTuning().candidates(FHWC, parse_target("cuda:sm_90"), packs_weight=True)
    assert [each.dispatch.configuration for each in found] == [Default()]
