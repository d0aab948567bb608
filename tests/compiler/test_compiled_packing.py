"""Packed weights through the compiler on this CPU: packed right, once, and only what depends on the weight alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compiled_helpers import TARGET, failures_of, verify_compiled
from pytest import approx

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import outlined
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.passes.packing import commands_of, pack_once, repeated
from dispatch_profiler.configurations import FORMS, CpuTiles, Formed, Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.measurement.kernels import open_kernels

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

FHWC = "nhwc_fhwc_nhwc"
LINEAR = Matmul(32, 64, 32, rhs_layout="n")
CONV = Conv2d(1, 6, 6, 8, 64, 3, 3, padding=(1, 1), layout="nchw")
GRADIENT = Conv2d(1, 7, 7, 64, 8, 3, 3, stride=(2, 2), padding=(1, 1), layout=FHWC, mode="input_backward")
PANELS, BLOCKED = Formed("panels", packed=True), Formed("blocked", packed=True)
MICROKERNEL = Microkernel((16, 32), (4, 1, 32), packed=True)


def at_phase_hal(request) -> IrModule:
    phases, flags = InProcess(), request.flags
    module = outlined(phases, phases.parse(request.source, flags), flags)
    return phases.advance(module, flags, "executable-sources", stop="hal")


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("operation", "configuration", "packing", "rest"),
    [
        # The permutation; the product.
        (LINEAR, PANELS, 1, 1),
        (LINEAR, MICROKERNEL, 1, 1),
        # The permutation; zeros around the image, a kernel for each of two blocks, their results.
        (Conv2d(1, 6, 6, 8, 128, 3, 3, padding=(1, 1), layout=FHWC), BLOCKED, 1, 5),
    ],
)
def test_the_profile_module_packs_once_and_computes_many_times(
    make_request, operation, configuration, packing, rest
):
    """Counted in the compiler's own IR."""
    module = at_phase_hal(make_request(operation, [configuration]))
    unpacked = at_phase_hal(make_request(operation, [replace(configuration, packed=False)]))
    copy = module.clone()
    once = sum(map(commands_of, pack_once(copy)))

    assert (once, module.commands() - once) == (packing, rest)
    assert repeated(module, 7).commands() == once + 7 * (module.commands() - once)
    assert repeated(unpacked, 7).commands() == 7 * unpacked.commands()
    assert "scf.if" not in module.text()


@pytest.mark.slow
def test_the_first_call_packs_and_others_read_what_it_stored(make_request):
    """With another weight, the profile vmfb computes the product with the first one, as with a constant."""
    tiled = Formed("permuted", CpuTiles((16, 32), (8, 16, 1)), packed=True)
    request = make_request(LINEAR, [PANELS, tiled, MICROKERNEL, Formed("panels")], repeat=3)
    built = IreeCompiler().build(request)
    device = open_kernels("local-sync")
    verify, profile = device.load(built.verify), device.load(built.profile)
    rng = np.random.default_rng(1)
    lhs = rng.integers(-4, 5, (32, 32)).astype("f4")
    first, second = (rng.integers(-4, 5, (64, 32)).astype("f4") for _ in range(2))

    def result(program, configuration, weight):
        (found,) = program.bind(Dispatch(LINEAR, configuration).name, device.put(LINEAR, (lhs, weight))).run()
        return found

    for weight in (first, second):
        for configuration in (PANELS, tiled, MICROKERNEL, Formed("panels")):
            assert result(verify, configuration, weight) == approx(lhs @ weight.T)
        assert result(profile, Formed("panels"), weight) == approx(lhs @ weight.T)
        assert result(profile, PANELS, weight) == approx(lhs @ first.T)
    # Another function of the module packs for itself, and then the first one packs again.
    for configuration in (tiled, MICROKERNEL):
        assert result(profile, configuration, second) == approx(lhs @ second.T)
    assert result(profile, PANELS, second) == approx(lhs @ second.T)


@pytest.mark.slow
def test_packing_and_computing_give_the_right_results():
    """A transform, and gradients in phases, with several packed tensors."""
    verify_compiled(
        [
            Dispatch(CONV, Formed("winograd_2", packed=True)),
            Dispatch(GRADIENT, Formed("phases", packed=True)),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [CONV, GRADIENT, Conv2d(1, 6, 6, 8, 128, 3, 3, layout=FHWC), Conv2d(1, 6, 6, 8, 8, 3, 3, groups=2)],
    ids=lambda each: each.name,
)
def test_every_form_packs_right(operation):
    every = [Formed(form, packed=True) for form in FORMS]
    kept = [each for each in every if each.invalid_reason(operation, TARGET.limits) is None]
    assert kept
    for configuration in kept:
        verify_compiled([Dispatch(operation, configuration)])


def test_a_wrong_packing_is_found():
    """Rows and columns of each panel exchanged: a permutation that the packed kernel reads as if it were right."""
    dispatch = Dispatch(LINEAR, PANELS)
    right, wrong = "affine_map<(p, k, n) -> (p, n, k)>", "affine_map<(p, k, n) -> (p, k, n)>"

    found = failures_of({dispatch: {"exchanged": lambda text: text.replace(right, wrong, 1)}})

    assert found[dispatch, ""] == ""
    assert "exchanged" not in found[dispatch, "exchanged"]
    assert found[dispatch, "exchanged"] != ""


def test_what_is_packed_together_with_other_work_is_refused(make_request):
    """If the image were prepared before the barrier too, the time would leave that out: no figure instead."""
    request = make_request(CONV, [Formed("permuted", packed=True)])
    lines = request.source.splitlines()
    barrier = next(line for line in lines if "dispatch_profiler.packs" in line)
    image = next(line for line in lines if "util.optimization_barrier %image" in line)
    rest = [line for line in lines if line is not barrier]
    rest.insert(rest.index(image) + 1, barrier)
    kernel = request.source.replace(request.source, "\n".join(rest))
    phases = InProcess()
    module = outlined(phases, phases.parse(kernel, request.flags), request.flags)
    module = phases.advance(module, request.flags, "executable-sources", stop="hal")

    with pytest.raises(ToolError, match="used without a barrier"):
        repeated(module, 5)
