"""Runs a signature: launches it, times it beside reference backends, and checks its numerics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.driver.backends import Backend, Launch
from dispatch_profiler.boo.driver.command_lines import Timing
from dispatch_profiler.boo.driver.compiled_kernel import error_bound, kernel_time
from dispatch_profiler.boo.driver.devices import CPU, has_torch, uri_of
from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.numerics.check import CheckOptions, check_numerics
from dispatch_profiler.boo.driver.outcomes import Outcome, described, time_lines
from dispatch_profiler.boo.driver.timing import Times, Turn, Work, measure_in_turn, measure_options
from dispatch_profiler.errors import DispatchProfilerError, reason_of
from dispatch_profiler.profiler.providers.threads import wait_until_asleep

if TYPE_CHECKING:
    from dispatch_profiler.boo.op_exports._base import OpSignature

#: Seed of the arguments that are timed.
_SEED = 10


@dataclass(frozen=True)
class DriverOptions:
    """What is done with each command. `device` is `cpu` or `cuda:N`; `references` are compared with our launch."""

    device: str = CPU
    references: tuple[Backend, ...] = ()
    splat: float | None = None
    verifies_numerics: bool = False

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Ours, then the references."""
        return Backend.BOO, *self.references


def execute(
    text: str,
    signature: OpSignature,
    timing: Timing,
    options: DriverOptions,
    show: Callable[[str], None],
) -> Outcome:
    """Launch `signature`, the one of the command `text`, and print what is found with `show`, a line each.

    Raises DispatchProfilerError if the launch fails; a reference backend that fails is part of the outcome.
    """
    launchable = get_launchable(signature)
    arguments = signature.get_sample_args(
        device=options.device if has_torch() else None, seed=_SEED, splat_value=options.splat
    )
    launch = Launch(signature, launchable, tuple(arguments), options.device)
    for result in _each(launchable(*arguments)):
        show(f">>> {described(result)}")
    times: dict[Backend, Times] = {}
    failures: dict[Backend, str] = {}
    kernel = None
    if timing.is_on:
        times, kernel, failures = _measure(launch, timing, options)
        for line in _lines(times, kernel, failures):
            show(f">>> {line}")
    numerics = ""
    error = ""
    if options.verifies_numerics:
        verdict = check_numerics(
            signature.launch,
            launchable,
            CheckOptions(options.device),
            error_bound(signature, uri_of(options.device)),
        )
        numerics, error = verdict.deviates.value, verdict.reason if verdict.has_failed else ""
        show(f">>> {verdict}")
    return Outcome(text, times, kernel, numerics, error, failures, timing.is_on)


def _measure(
    launch: Launch, timing: Timing, options: DriverOptions
) -> tuple[dict[Backend, Times], Times | None, dict[Backend, str]]:
    works: dict[Backend, Work] = {}
    failures: dict[Backend, str] = {}
    for backend in options.backends:
        try:
            works[backend] = launch.work(backend)
        except DispatchProfilerError as error:
            failures[backend] = reason_of(error)
    turns = [
        Turn(work.time, wait_until_asleep) if backend.is_torch else Turn(work.time)
        for backend, work in works.items()
    ]
    own = Turn(kernel_time(launch.signature, launch.arguments, launch.kernel_device))
    *found, kernel = measure_in_turn([*turns, own], measure_options(timing))
    return dict(zip(works, found, strict=True)), kernel, failures


def _lines(times: dict[Backend, Times], kernel: Times | None, failures: dict[Backend, str]) -> list[str]:
    found = [
        line
        for backend, each in times.items()
        for line in time_lines("" if backend is Backend.BOO else backend.value, each)
    ]
    found += time_lines("kernel", kernel) if kernel else []
    return found + [f"{backend.value}: {why}" for backend, why in failures.items()]


def _each(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple) else (results,)
