"""Runs a signature: launches it, times it beside reference backends, and checks its numerics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dispatch_profiler.boo.driver.launch import error_bound, get_launchable, kernel_time
from dispatch_profiler.boo.driver.memory_check import check_memory
from dispatch_profiler.boo.driver.numerics.check import CheckOptions, check_numerics
from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.boo.driver.runs.outcomes import (
    DriverBackend,
    SignatureLaunch,
    SignatureOutcome,
    TimedSide,
    Work,
    described,
    measure_in_turn,
    measure_options,
    time_lines,
)
from dispatch_profiler.boo.driver.torch_functions import CPU, has_torch, uri_of
from dispatch_profiler.errors import DispatchProfilerError, reason_of
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.threads import wait_until_asleep

if TYPE_CHECKING:
    from dispatch_profiler.boo.op_exports._base import OpSignature

#: Seed of the arguments of timed launches.
_SEED = 10


@dataclass(frozen=True)
class DriverOptions:
    """How each command is run: on `device` (`cpu` or `cuda:N`), beside the backends `references`.

    Arguments are filled with the value `splat`, or with random values if it is None.
    """

    device: str = CPU
    references: tuple[DriverBackend, ...] = ()
    splat: float | None = None
    verifies_numerics: bool = False

    @property
    def backends(self) -> tuple[DriverBackend, ...]:
        """Our backend, then the references."""
        return DriverBackend.BOO, *self.references


def execute(
    text: str,
    signature: OpSignature,
    timing: Timing,
    options: DriverOptions,
    show: Callable[[str], None],
) -> SignatureOutcome:
    """Launch `signature`, whose command is `text`, and pass each line of the outcome to `show`.

    Raises DispatchProfilerError if the launch fails. The outcome includes failures of reference backends.
    """
    check_memory(signature.operation)
    launchable = get_launchable(signature)
    arguments = signature.get_sample_args(
        device=options.device if has_torch() else None, seed=_SEED, splat_value=options.splat
    )
    launch = SignatureLaunch(signature, launchable, tuple(arguments), options.device)
    results = launchable(*arguments)
    for result in results if isinstance(results, tuple) else (results,):
        show(f">>> {described(result)}")
    outcome = SignatureOutcome(text)
    if timing.is_on:
        outcome = _measure(launch, text, timing, options)
        for line in _lines(outcome):
            show(f">>> {line}")
    if not options.verifies_numerics:
        return outcome
    check, bound = CheckOptions(options.device), error_bound(signature, uri_of(options.device))
    verdict = check_numerics(signature.launch, launchable, check, bound)
    show(f">>> {verdict}")
    return replace(
        outcome, numerics=verdict.deviates.value, error=verdict.reason if verdict.has_failed else ""
    )


def _measure(launch: SignatureLaunch, text: str, timing: Timing, options: DriverOptions) -> SignatureOutcome:
    works: dict[DriverBackend, Work] = {}
    failures: dict[DriverBackend, str] = {}
    unsupported: dict[DriverBackend, str] = {}
    for backend in options.backends:
        try:
            works[backend] = launch.work(backend)
        except NotSupported as error:
            unsupported[backend] = reason_of(error)
        except DispatchProfilerError as error:
            failures[backend] = reason_of(error)
    sides = [
        TimedSide(work.time, wait_until_asleep) if backend.is_torch else TimedSide(work.time)
        for backend, work in works.items()
    ]
    own = TimedSide(kernel_time(launch.signature, launch.arguments, launch.kernel_device))
    *measured, kernel = measure_in_turn([*sides, own], measure_options(timing))
    return SignatureOutcome(
        text,
        dict(zip(works, measured, strict=True)),
        kernel,
        failures=failures,
        unsupported=unsupported,
        is_timed=True,
    )


def _lines(outcome: SignatureOutcome) -> list[str]:
    lines = [
        line
        for backend, each in outcome.times.items()
        for line in time_lines("" if backend is DriverBackend.BOO else backend.value, each)
    ]
    lines += time_lines("kernel", outcome.kernel) if outcome.kernel else []
    return lines + outcome.absences
