"""The kernels of an operation that are worth measuring, and the choice between them, which is kept for the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import (
    KernelCandidates,
    NeededKernel,
    OperationKernels,
    Toolchain,
    choices,
    prepare_candidates,
    variants,
)
from dispatch_profiler.boo.kernels.choices import KernelChoice
from dispatch_profiler.boo.kernels.variants import MOST_CANDIDATES, LaunchTuning
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache, IreeCompiler, NullCompiler
from dispatch_profiler.compiler.backends.null import load_rules
from dispatch_profiler.configurations import (
    Configuration,
    Default,
    DepthwiseGradient,
    Formed,
    Microkernel,
    PackedInCalls,
    Tuned,
    WinogradMicrokernel,
    rejection_reason,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Conv2d, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import (
    Target,
    fastest_form,
    parse_target,
)
from dispatch_profiler.targets.untuned import launch_kernels
from dispatch_profiler.targets.untuned import packed_kernels as packed_rules
from dispatch_profiler.targets.untuned.triton.tiles import ranked_triton_tiles

HERE = DeviceUri("local-task")
CPU = parse_target("llvm-cpu")
FHWC = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
#: What the rule of Winograd microkernels says, the fastest first.
WINOGRAD = tuple(WinogradMicrokernel(pixels, (25, 64), 25, (13, 32)) for pixels in (4, 2, 4))
#: What the rule of depthwise gradients says.
GRADIENTS = tuple(DepthwiseGradient((2, channels), (2, 4, channels)) for channels in (16, 32))
#: What the rule of direct ones says.
RANKED = tuple(
    Microkernel(distribution, registers, packed=True)
    for distribution, registers in (
        ((7, 64), (1, 14, 32)),
        ((7, 64), (1, 4, 64)),
        ((6, 64), (1, 14, 32)),
        ((14, 64), (1, 14, 32)),
    )
)


@pytest.fixture(autouse=True)
def _ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule on machines with any vectors and any number of threads."""

    def ranked(operation: Operation, target: Target, *, packed: bool = True) -> tuple[Microkernel, ...]:
        if isinstance(operation, LayerNorm):
            return ()
        return RANKED if packed else tuple(replace(each, packed=False) for each in RANKED)

    def winograd(operation: Operation, target: Target) -> tuple[tuple[float, WinogradMicrokernel], ...]:
        is_valid = not WINOGRAD[0].invalid_reason(operation, target.limits)
        return tuple(zip((1.0, 2.0, 3.0), WINOGRAD, strict=True)) if is_valid else ()

    def gradients(operation: Operation, target: Target) -> tuple[DepthwiseGradient, ...]:
        return tuple(each for each in GRADIENTS if not each.invalid_reason(operation, target.limits))

    def first_of_each(*given: Any) -> tuple[Configuration, ...]:
        return (*(each for _, each in winograd(*given)[:1]), *ranked(*given)[:1])

    def packing(operation: Operation, target: Target) -> tuple[Configuration, ...]:
        return (
            tuple(map(PackedInCalls, first_of_each(operation, target)))
            if operation == FHWC and target == CPU
            else ()
        )

    monkeypatch.setattr(launch_kernels, "packed_kernels", first_of_each)
    monkeypatch.setattr(launch_kernels, "unpacked_kernels", packing)
    monkeypatch.setattr(launch_kernels, "ranked_depthwise_gradients", gradients)
    monkeypatch.setattr(packed_rules, "ranked_microkernels", ranked)
    monkeypatch.setattr(packed_rules, "ranked_winograd", winograd)
    monkeypatch.setattr(variants, "ranked_microkernels", ranked)


def candidates(
    operation: Operation, tuning: LaunchTuning = LaunchTuning(), *, packs: bool = True
) -> list[Configuration]:
    found = tuning.candidates(operation, CPU, packs_weight=packs)
    first = next(tuning.variants(operation, CPU, packs_weight=packs))
    assert found[0] == first
    return [each.dispatch.configuration for each in found]


def test_a_constant_weight_is_packed_in_four_ways() -> None:
    """By the rules' choices, and the next ones of each kind."""
    assert candidates(FHWC) == [WINOGRAD[0], RANKED[0], WINOGRAD[1], RANKED[1]]
    assert all(rejection_reason(each, FHWC, CPU.limits) is None for each in candidates(FHWC))


@pytest.mark.usefixtures("two_threads")
def test_without_winograd_there_are_four_too() -> None:
    """The third one divides the work otherwise."""
    operation = replace(FHWC, r=1, s=1, padding=(0, 0))
    assert candidates(operation) == [RANKED[0], RANKED[1], RANKED[3], RANKED[2]]


def test_forms_are_candidates_if_the_rules_know_one_microkernel_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = fastest_form(FHWC, CPU, packed_weights=True)
    assert form is not None
    monkeypatch.setattr(packed_rules, "ranked_winograd", lambda *_: ())
    for known in (RANKED[:1], ()):
        monkeypatch.setattr(launch_kernels, "packed_kernels", lambda *_, known=known: known)
        monkeypatch.setattr(packed_rules, "ranked_microkernels", lambda *_, known=known: known)
        packed = form.with_packed_weight(FHWC)
        assert packed is not None
        assert candidates(FHWC) == [*known, packed]


@pytest.mark.parametrize("entry", [Formed("winograd", packed=True), RANKED[0]])
def test_what_the_library_has_comes_first_and_once(entry: Configuration) -> None:
    revision, faster = IreeCompiler().revision, Estimate(2.0, 1.9, 2.1)
    provenance = Provenance("local-task", "llvm-cpu", f"compiler {revision}, runtime 3.13.0", 7)
    library = Library([Entry(Dispatch(FHWC, entry), faster, faster, provenance)])
    found = candidates(FHWC, LaunchTuning(TunedConfigurations(library, CPU, revision)))
    others = [each for each in (WINOGRAD[0], RANKED[0], WINOGRAD[1], RANKED[1]) if each != entry]
    assert found == [Tuned(entry), *others[:3]]


def test_an_entry_that_does_not_pack_a_constant_weight_follows_the_rules() -> None:
    """It counts where the weight may change."""
    revision, faster = IreeCompiler().revision, Estimate(2.0, 1.9, 2.1)
    provenance = Provenance("local-task", "llvm-cpu", f"compiler {revision}, runtime 3.13.0", 7)
    entry = replace(RANKED[0], packed=False)
    library = Library([Entry(Dispatch(FHWC, entry), faster, faster, provenance)])
    tuning = LaunchTuning(TunedConfigurations(library, CPU, revision))
    assert candidates(FHWC, tuning)[0] == WINOGRAD[0]
    assert candidates(FHWC, tuning, packs=False)[0] == Tuned(entry)
    every = [each.dispatch.configuration for each in tuning.variants(FHWC, CPU, packs_weight=True)]
    assert Tuned(entry) in every[2:]


def test_a_weight_that_may_change_is_packed_in_each_call() -> None:
    found = candidates(FHWC, packs=False)
    assert found == [PackedInCalls(WINOGRAD[0]), PackedInCalls(RANKED[0]), fastest_form(FHWC, CPU)]
    assert not any(each.packs_weight for each in found)
    other = replace(FHWC, h=27)
    assert candidates(other, packs=False) == [fastest_form(other, CPU)]


def test_a_weight_that_may_change_is_copied_in_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    copying = [replace(each, packed=False) for each in RANKED[:2]]
    monkeypatch.setattr(launch_kernels, "unpacked_kernels", lambda *_: copying[:1])
    assert candidates(FHWC, packs=False) == [copying[0], fastest_form(FHWC, CPU), copying[1]]


def test_gradients_are_promising_if_a_kernel_packs_or_was_tuned() -> None:
    gradient = replace(FHWC, mode="weight_backward")
    tuning = LaunchTuning()
    assert tuning.is_promising(FHWC, CPU)
    assert not tuning.is_promising(gradient, CPU)
    assert tuning.is_promising(LayerNorm(8, 16), CPU)
    assert tuning.is_promising(gradient, parse_target("cuda:sm_90"))
    assert LaunchTuning(flags=("--spec",)).is_promising(gradient, CPU)
    revision, faster = IreeCompiler().revision, Estimate(2.0, 1.9, 2.1)
    provenance = Provenance("local-task", "llvm-cpu", f"compiler {revision}, runtime 3.13.0", 7)
    library = Library([Entry(Dispatch(gradient, Formed("taps")), faster, faster, provenance)])
    assert LaunchTuning(TunedConfigurations(library, CPU, revision)).is_promising(gradient, CPU)
    depthwise = replace(gradient, k=gradient.c, groups=gradient.c)
    assert tuning.is_promising(depthwise, CPU)
    assert candidates(depthwise, packs=False) == list(GRADIENTS)


@pytest.mark.parametrize("operation", [LayerNorm(8, 16), Matmul(16, 16, 16)])
def test_the_default_is_alone(operation: Operation) -> None:
    assert candidates(operation, packs=False) == [Default()]


def test_a_tuning_spec_is_the_choice_of_the_user(tmp_path: Path) -> None:
    assert candidates(FHWC, LaunchTuning(flags=("--spec",))) == [Default()]


@pytest.mark.parametrize("version", ["", "3.9.0"])
def test_gpus_have_one(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the rule, or without Triton the compiler's default."""
    monkeypatch.setattr(variants, "triton_version", lambda: version)
    target = parse_target("cuda:sm_90")
    found = LaunchTuning().candidates(FHWC, target, packs_weight=True)
    expected = ranked_triton_tiles(FHWC, target)[0] if version else Default()
    assert [each.dispatch.configuration for each in found] == [expected]


# -- the choice ------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchSettings:
    """A cache of the test. The null compiler compiles for this CPU, without a library."""
    SESSION.clear("kernels")
    compile_by(monkeypatch, None)
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "")
    return launch_settings()


def compile_by(monkeypatch: pytest.MonkeyPatch, faults: Path | None) -> None:
    def toolchain(target: Target, tuning: str | None) -> Toolchain:
        return Toolchain(target, NullCompiler(load_rules(faults) if faults else ()), LaunchTuning())

    monkeypatch.setattr(Toolchain, "of", toolchain)


def prepared(operation: Operation = FHWC, *, packs: bool = True) -> KernelCandidates | None:
    needed = NeededKernel(operation, packs)
    found, failures = prepare_candidates([needed], HERE, workers=1)
    assert failures == {}
    return found.get(needed)


def launched_kernel(settings: LaunchSettings, *, packs: bool = True) -> LaunchKernel:
    """The kernel of a launch."""
    return OperationKernels(FHWC, FHWC.name, settings, packs_weight=packs).kernel(HERE)


def test_all_candidates_are_compiled_at_once(settings: LaunchSettings, builds: list[str]) -> None:
    found = prepared()
    assert found is not None
    names = [each.dispatch.name for each in LaunchTuning().candidates(FHWC, CPU, packs_weight=True)]
    assert builds == names == [kernel.function for _, kernel in found.every]
    assert prepared(LayerNorm(8, 16)) is None


@pytest.mark.parametrize("place", [0, 2])
def test_the_chosen_kernel_is_used_from_then_on(
    settings: LaunchSettings, builds: list[str], place: int
) -> None:
    """By launches of this process and of the next one, which neither compiles nor measures."""
    found = prepared()
    assert found is not None
    found.keep(place, [3e-6, None, 2e-6, 4e-6])
    label = LaunchTuning().candidates(FHWC, CPU, packs_weight=True)[place].label
    for _ in range(2):
        kernel = launched_kernel(settings)
        assert kernel.function == found.every[place][1].function
        assert [seconds for _, seconds in kernel.measured] == pytest.approx([3e-6, 2e-6, 4e-6])
        assert label in dict(kernel.measured)
        assert prepared() is None
        SESSION.clear("kernels")  # as a new process
    assert len(builds) == MOST_CANDIDATES


def test_the_choice_is_for_the_threads_and_the_packing_at_hand(
    settings: LaunchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared()
    assert found is not None
    found.keep(3, [4.0, 3.0, 2.0, 1.0])
    assert launched_kernel(settings, packs=False).function != found.every[3][1].function
    SESSION.clear("kernels")
    monkeypatch.setattr(choices, "usable_threads", lambda: 99)
    assert launched_kernel(settings).function == found.every[0][1].function
    assert prepared() is not None


def test_without_a_cache_the_choice_lasts_as_long_as_the_process(
    settings: LaunchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    found = prepared()
    assert found is not None
    found.keep(1, [2.0, 1.0, 3.0, 4.0])
    assert launched_kernel(launch_settings()).function == found.every[1][1].function
    assert prepared() is None
    SESSION.clear("kernels")
    assert prepared() is not None


NOTE = KernelChoice(RANKED[1], (("a", 1e-6),)).note


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "note",
    [
        *("", "junk", "[]", "3", '{"configuration": {}}', '{"configuration": 3, "microseconds": {}}'),
        NOTE.replace("microkernel", "no_such_kind"),
        NOTE.replace("registers", "no_such_field"),
        NOTE.replace("[1, 4, 64]", "[1, 4, 65]"),  # tiles that do not fit
        NOTE.replace("1.0}", "-1.0}"),
        NOTE.replace("1.0}", "NaN}"),
        NOTE.replace("1.0}", '"fast"}'),
    ],
)
def test_a_note_that_cannot_be_used_is_ignored(settings: LaunchSettings, note: str) -> None:
    assert note != NOTE
    found = prepared()
    assert found is not None and settings.cache_folder is not None
    name = choices.choice_name(packs_weight=True)
    Cache(settings.cache_folder).add_note(found.key, name, note)
    SESSION.clear("kernels")
    assert launched_kernel(settings).function == found.every[0][1].function
    assert prepared() is not None
    Cache(settings.cache_folder).add_note(found.key, name, NOTE)
    SESSION.clear("kernels")
    assert launched_kernel(settings).function == found.every[3][1].function


def test_a_launch_that_packs_no_weight_follows_no_note_that_packs_it() -> None:
    assert KernelChoice.of(NOTE, FHWC, CPU, packs_weight=True) == KernelChoice(RANKED[1], (("a", 1e-6),))
    assert KernelChoice.of(NOTE, FHWC, CPU, packs_weight=False) is None


@pytest.mark.some(2)
@pytest.mark.parametrize("broken", [[0], [1, 3], [1, 2, 3], [0, 1, 2, 3]])
def test_kernels_that_do_not_compile_are_no_candidates(
    settings: LaunchSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: list[int]
) -> None:
    """Without a second one, there is nothing to choose. The compiler's default is the last resort of launches."""
    names = [each.dispatch.name for each in LaunchTuning().candidates(FHWC, CPU, packs_weight=True)]
    faults = tmp_path / "faults.yaml"
    faults.write_text(json.dumps({names[at]: {"not_compiled": "planted"} for at in broken}))
    compile_by(monkeypatch, faults)
    found = prepared()
    left = [name for at, name in enumerate(names) if at not in broken]
    if len(left) > 1:
        assert found is not None
        assert {kernel.function for _, kernel in found.every} >= set(left)
    else:
        assert found is None
    assert launched_kernel(settings).function not in [names[at] for at in broken]


def test_an_operation_without_a_kernel_has_a_reason(
    settings: LaunchSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text(json.dumps({"conv2d*": {"not_compiled": "planted"}}))
    compile_by(monkeypatch, faults)
    found, failures = prepare_candidates([NeededKernel(FHWC, True)], HERE, workers=1)
    assert found == {} and "planted" in failures[FHWC]
