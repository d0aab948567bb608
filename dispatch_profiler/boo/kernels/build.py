"""Kernels for launches, from the cache or the compiler.

The variants of an operation are tried in order until one compiles, so that a bad tuned configuration or form does not
make an operation unusable. Equal kernels are compiled once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from dispatch_profiler.boo.environment import LOGGER, TUNING_VARIABLE, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel, Packing
from dispatch_profiler.boo.kernels.choices import KernelChoice, choice_name
from dispatch_profiler.boo.kernels.variants import LaunchTuning, Variant
from dispatch_profiler.boo.progress import current
from dispatch_profiler.compiler import (
    BuildOutcome,
    BuildRequest,
    Built,
    Cache,
    Compiler,
    compiler_for,
    launch_flags,
    launch_key,
    launch_request,
    origin_of,
)
from dispatch_profiler.configurations import Configuration, Default, packed_by
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import CompilerError, UsageError
from dispatch_profiler.isolation import WorkerLimits, available_memory
from dispatch_profiler.operations import ConvolutionGeometry, Operation
from dispatch_profiler.targets import Target

if TYPE_CHECKING:
    from dispatch_profiler.compiler.workers.pool import BuildPool

#: Time limit in seconds to compile one kernel.
_SECONDS = 120.0
#: The compiler's error for a file without a tuning spec, or with a damaged one.
_UNREADABLE_SPEC = "Failed to load tuning spec"
_log = logging.getLogger(LOGGER)

#: A kernel, or the reason why it is missing.
KernelOrError = LaunchKernel | CompilerError


@dataclass(frozen=True)
class Toolchain:
    """A target, its compiler, and the tuned configurations for it."""

    target: Target
    compiler: Compiler
    tuning: LaunchTuning

    @classmethod
    def of(cls, target: Target, tuning: str | None) -> Toolchain:
        """The toolchain for `target`. `tuning` is as in `LaunchSettings`. Raises UsageError if it cannot be read."""
        compiler = compiler_for(target, folder=launch_settings().cache_folder)
        return cls(target, compiler, LaunchTuning.read(tuning, target, compiler))


class KernelSearch:
    """The search for the kernel of one operation: takes builds of its variants, in order, until one compiled.

    `name` labels the kernel in the cache. With `packs_weight`, kernels that take a packed weight are preferred. A variant
    that was measured to be the fastest on this machine comes first (see `choices`), unless the `variants` to build are
    given.
    """

    def __init__(
        self,
        operation: Operation,
        name: str,
        toolchain: Toolchain,
        *,
        packs_weight: bool = False,
        variants: Iterable[Variant] | None = None,
    ) -> None:
        self.name = name
        self.target = toolchain.target
        self.compiler = toolchain.compiler
        usual = toolchain.tuning.variants(operation, toolchain.target, packs_weight=packs_weight)
        self._left: Iterator[Variant] = usual if variants is None else iter(variants)
        self._packs_weight = packs_weight
        self._may_follow = variants is None
        self._choice: KernelChoice | None = None
        #: The variant whose build is needed next.
        self.variant: Variant = next(self._left)
        self._key = ""
        #: Why variants were passed over.
        self.failures: list[str] = []

    @property
    def key(self) -> str:
        """The content key of `variant`."""
        if not self._key:
            variant = self.variant
            self._key = launch_key(variant.dispatch, self.target, self.compiler, variant.flags)
        return self._key

    @property
    def fault(self) -> str:
        """The known fault of the kernel of `variant`; empty if no fault is known."""
        dispatch = self.variant.dispatch
        return known_fault(dispatch.operation, dispatch.configuration, self.target)

    @property
    def request(self) -> BuildRequest:
        """The request to build `variant`."""
        return launch_request(self.variant.dispatch, self.target, self.variant.flags)

    def take(self, built: Built) -> KernelOrError | None:
        """Take the build of `variant`. Returns its kernel, an error after the last variant, else None (try the next).

        Raises UsageError if the compiler cannot read the tuning spec of `variant`.
        """
        dispatch = self.variant.dispatch
        outcome = built.outcomes[dispatch.name]
        if outcome.state is State.COMPILED:
            _log.debug("%s: %s for %s", self.name, self.variant.label, self.target.name)
            kernel = LaunchKernel(built.verify, dispatch.name, self.key, built.program, _packing(dispatch))
            is_chosen = self._choice is not None and self._choice.configuration == dispatch.configuration
            measured = self._choice.measured if is_chosen and self._choice is not None else ()
            return replace(kernel, passed_over=tuple(self.failures), measured=measured)
        if self.variant.flags and _UNREADABLE_SPEC in built.diagnostics:
            spec = self.variant.flags[0].partition("=")[2]
            raise UsageError(
                f"{TUNING_VARIABLE}: the compiler cannot read the tuning spec {spec}: {outcome.reason}",
                hint="name a tuning spec such as `dispatch-profiler library spec` writes, or a library",
            )
        failure = f"{dispatch.name} for {self.target.name}: {outcome.state.value}: {outcome.reason}"
        self.failures.append(failure)
        following = next(self._left, None)
        if following is None:
            return _failed(failure, built.diagnostics, outcome)
        self.variant, self._key = following, ""
        return None

    def follow(self, cache: Cache | None) -> bool:
        """Begin with the variant that `cache` has noted as the fastest. Returns whether it has noted one.

        Call this before builds are taken; `look_up` does.
        """
        if cache is None or not self._may_follow:
            return self._choice is not None
        self._may_follow = False
        first, operation = self.variant, self.variant.dispatch.operation
        note = cache.notes(self.key).get(choice_name(packs_weight=self._packs_weight))
        self._choice = KernelChoice.of(note, operation, self.target, packs_weight=self._packs_weight)
        if self._choice is not None and self._choice.configuration != first.dispatch.configuration:
            chosen = Variant(Dispatch(operation, self._choice.configuration))
            self._left = chain([first], (each for each in self._left if each != chosen))
            self.variant, self._key = chosen, ""
        return self._choice is not None

    def untried(self) -> Iterator[Variant]:
        """The variants that have not failed, for another compiler than launches use; the search ends with that."""
        return chain([self.variant], self._left)

    def look_up(self, cache: Cache | None) -> KernelOrError | None:
        """Take builds from `cache`. Returns the outcome, or None if the cache lacks the build of `variant`.

        Returns an error at once if the kernel of `variant` has a known fault.
        """
        self.follow(cache)
        if self.fault:
            return CompilerError(f"{self.variant.dispatch.operation.name}: {self.fault}")
        while cache is not None and (built := cache.get(self.key, _SECONDS)) is not None:
            if (kernel := self.take(built)) is not None:
                return kernel
            _log.info("%s (in the cache)", self.failures[-1])
        return None


def find_kernels(
    searches: Sequence[KernelSearch], cache: Cache | None, workers: int
) -> Iterator[tuple[KernelSearch, KernelOrError]]:
    """Yield the outcome of every search as soon as it is known. At most `workers` kernels are compiled at once.

    Raises UsageError if the compiler does not know a flag or cannot read the tuning spec, and ToolError if the compiler
    does not start.
    """
    left: dict[Compiler, list[KernelSearch]] = {}
    for search in searches:
        if (kernel := search.look_up(cache)) is not None:
            yield search, kernel
        else:
            left.setdefault(search.compiler, []).append(search)
    progress, done, total = current(), 0, sum(map(len, left.values()))
    for compiler, missing in left.items():
        progress.phase(f"{done} of {counted(total, 'kernel')} compiled")
        progress.begin()
        with _open_pool(compiler, min(workers, len(missing))) as pool:
            for found in _build(missing, cache, pool):
                done += 1
                progress.phase(f"{done} of {counted(total, 'kernel')} compiled")
                yield found


def _build(
    searches: Sequence[KernelSearch], cache: Cache | None, pool: BuildPool[str]
) -> Iterator[tuple[KernelSearch, KernelOrError]]:
    left = list(searches)
    while left:
        waiting: dict[str, list[KernelSearch]] = {}
        for search in left:
            waiting.setdefault(search.key, []).append(search)
        left = []
        for key, built in pool.results(_requests(waiting, pool)):
            if cache is not None:
                first = waiting[key][0]
                cache.put(key, built, first.name, origin_of(first.target, first.compiler))
            for search in waiting[key]:
                kernel = search.take(built)
                if kernel is None:
                    _log.warning(
                        "%s; trying %s", search.failures[-1], search.variant.dispatch.configuration.name
                    )
                    kernel = search.look_up(cache)
                if kernel is None:
                    left.append(search)
                else:
                    yield search, kernel


def _requests(waiting: Mapping[str, Sequence[KernelSearch]], pool: BuildPool[str]) -> dict[str, BuildRequest]:
    """The build request of each key. The first compiler process starts while the sources are rendered."""
    searches = {key: group[0] for key, group in waiting.items()}
    flags = [
        launch_flags(each.variant.dispatch, each.target, each.variant.flags) for each in searches.values()
    ]
    with ThreadPoolExecutor(1) as background:
        reading = background.submit(pool.read_flags, flags)
        requests = {key: each.request for key, each in searches.items()}
        reading.result()
    return requests


def _failed(message: str, diagnostics: str, outcome: BuildOutcome) -> CompilerError:
    """The error of an operation without a kernel, after the outcome of its last variant."""
    hint = ""
    if outcome.is_deterministic:
        hint = (
            "the launch cache keeps this failure; to try again, run dispatch-profiler cache clear --failures"
        )
    error = CompilerError(message, diagnostics=diagnostics, hint=hint)
    error.is_deterministic = outcome.is_deterministic
    return error


def _packing(dispatch: Dispatch) -> Packing | None:
    """How the weight of a dispatch is packed; None if the dispatch takes the weight as it is."""
    steps = dispatch.configuration.packing(dispatch.operation)
    return Packing(dispatch.packing_function, packed_by(steps), steps) if steps else None


def _open_pool(compiler: Compiler, workers: int) -> BuildPool[str]:
    from dispatch_profiler.compiler.workers.pool import (  # imported here: joblib is slow to import
        BuildPool,
        Executor,
    )

    limits = WorkerLimits(_SECONDS, available_memory() // workers)
    return BuildPool(compiler, Executor(workers=workers), limits)


# -- known faults ----------------------------------------------------------------------------------

# Kernels that compile, but compute something else.
#
# IREE 3.13 has no right kernel for some convolutions in 16-bit types on NVIDIA's tensor cores. They were found by
# comparing 90 convolutions with float64 references on an H200 (`tests/boo/test_cuda_launches.py`, `numerics`); the rules
# below cover them, and similar ones.


_BITS = 16


def known_fault(operation: Operation, configuration: Configuration, target: Target) -> str:
    """What is wrong with the kernel of a configuration; empty if nothing is known.

    Only the compiler's default is judged: what a library has was verified when it was tuned.
    """
    geometry = operation.convolution
    is_on_tensor_cores = target.limits.backend == "cuda" and operation.element_type.bits == _BITS
    if geometry is None or not is_on_tensor_cores or not isinstance(configuration, Default):
        return ""
    kind = _faulty_kind(geometry)
    return f"IREE 3.13 compiles {kind} in 16-bit types wrongly for NVIDIA's tensor cores" if kind else ""


def _faulty_kind(geometry: ConvolutionGeometry) -> str:
    is_pointwise = math.prod(geometry.filter_size) == 1
    if geometry.mode == "weight_backward" and is_pointwise and math.prod(geometry.stride) > 1:
        return "the gradient of a pointwise filter with a stride"
    if geometry.mode == "input_backward":
        if not is_pointwise and geometry.filter_layout.endswith("cf"):
            return "the gradient of the input of filters that end with their outputs"
        if is_pointwise and geometry.groups > 1 and not geometry.is_channels_last:
            return "the gradient of the input of grouped pointwise filters in NCHW"
    return ""
