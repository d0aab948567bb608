"""Where the kernels of launches come from, and which operations have no entry of a library: the workload to tune next.

launch or region -> kernel -> KernelUse -> `misses()`, and the file that BOO_MISSES names
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_profiler.boo.environment import LOGGER, TUNING_VARIABLE, misses_file
from dispatch_profiler.boo.kernels.variants import LaunchTuning, Variant
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.configurations import Configuration, Default, Tuned
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.library.tuned import TunedLookup
from dispatch_profiler.operations import KINDS, Operation
from dispatch_profiler.targets import Target, fastest_form

if TYPE_CHECKING:
    from dispatch_profiler.workloads import Workload

_log = logging.getLogger(LOGGER)
#: The origin of entries of a workload of misses.
_ORIGIN = "launches without an entry"
#: Reasons of kernels for which nothing is looked up.
_BY_SPEC = f"the tuning spec of {TUNING_VARIABLE} replaces the library"
_WITHOUT_SPEC = f"what the tuning spec of {TUNING_VARIABLE} asks for does not compile"
_NO_LIBRARY = f"no library is used: {TUNING_VARIABLE} is empty, or none is included for this hardware"
_NO_SIZES = "its kernel is for any batch, and the library has no entry for several sizes with this one"


class KernelOrigin(str, Enum):
    """Where the configuration of a kernel comes from."""

    ENTRY = "exact entry"
    #: An entry for several numbers of rows or images.
    SIZES = "range"
    #: An entry that divides its work for a very different number of threads.
    OTHER_THREADS = "other threads"
    #: The entry of the same operation with another epilogue.
    NEAR = "near entry"
    #: A rule expects it to be fast.
    PREDICTED = "predicted"
    #: The fastest known form, or the compiler's default.
    UNTUNED = "untuned"
    #: The compiler looks it up in the tuning spec that BOO_TUNING_SPEC_PATH names.
    SPEC = "tuning spec"


@dataclass(frozen=True)
class KernelUse:
    """A kernel that this process launches. `reason` says why it is not that of an exact entry; empty if it is.

    `is_missed`: no entry of the library was measured for this operation, this compiler and about as many threads.
    """

    operation: Operation
    configuration: str
    origin: KernelOrigin
    reason: str = ""
    is_missed: bool = False

    @property
    def text(self) -> str:
        """`predicted: the library has no entry`, or `exact entry`."""
        return f"{self.origin.value}: {self.reason}" if self.reason else self.origin.value


def use_of(variant: Variant, tuning: LaunchTuning, target: Target, *, packs_weight: bool) -> KernelUse:
    """Where the kernel of `variant` comes from, with the tuned configurations of `tuning`."""
    operation, configuration = variant.dispatch.operation, variant.dispatch.configuration
    if tuning.flags:
        # Nothing is looked up, so that nothing is missed.
        is_tuned = variant.flags == tuning.flags
        origin = KernelOrigin.SPEC if is_tuned else KernelOrigin.UNTUNED
        reason = _BY_SPEC if is_tuned else _WITHOUT_SPEC
        return KernelUse(operation, configuration.name, origin, reason)
    lookup = tuning.lookup(operation, packs_weight=packs_weight)
    reason = _missed(lookup)
    origin = _origin(configuration, lookup, fastest_form(operation, target, packed_weights=packs_weight))
    if not reason and origin is not KernelOrigin.ENTRY:
        return KernelUse(operation, configuration.name, origin, "it is faster here than the library's entry")
    return KernelUse(operation, configuration.name, origin, reason, bool(reason))


def use_of_any_batch(
    operation: Operation, configuration: Configuration, lookup: TunedLookup | None
) -> KernelUse:
    """The use of a kernel for any batch by `operation`, which has the batch of one call; `lookup` found the entry for its size."""
    if isinstance(configuration, Tuned) and lookup is not None and lookup.sizes is not None:
        return KernelUse(operation, configuration.name, KernelOrigin.SIZES, lookup.sizes.text)
    reason = f"the library's entry is not used: {lookup.problem}" if lookup and lookup.problem else _NO_SIZES
    return KernelUse(operation, configuration.name, KernelOrigin.PREDICTED, reason, is_missed=True)


def _missed(lookup: TunedLookup | None) -> str:
    """Why a library has no entry that was measured for an operation and its threads; empty if it has one."""
    if lookup is None:
        return _NO_LIBRARY
    if lookup.problem:
        return f"the library's entry is not used: {lookup.problem}"
    if lookup.dispatch is None:
        return "the library has no entry"
    if lookup.shares_otherwise:
        return "the library's entry is for another number of threads"
    return f"the library has {lookup.tuned_from}" if lookup.tuned_from else ""


def _origin(
    configuration: Configuration, lookup: TunedLookup | None, form: Configuration | None
) -> KernelOrigin:
    if not isinstance(configuration, Tuned):
        is_untuned = configuration == Default() or configuration == form
        return KernelOrigin.UNTUNED if is_untuned else KernelOrigin.PREDICTED
    if lookup is not None and lookup.shares_otherwise:
        return KernelOrigin.OTHER_THREADS
    return KernelOrigin.NEAR if configuration.tuned_from else KernelOrigin.ENTRY


class KernelUses:
    """The kernels that this process launches, by operation and whether the weight is packed."""

    def __init__(self) -> None:
        self._uses: dict[tuple[Operation, bool], KernelUse] = {}
        #: What was written to which file.
        self._written: set[tuple[Path, Operation]] = set()
        self._lock = threading.Lock()

    def add(self, use: KernelUse, *, packs_weight: bool) -> None:
        """Remember a kernel. An operation without an entry is added to the file that BOO_MISSES names, once."""
        with self._lock:
            self._uses[use.operation, packs_weight] = use
        file = misses_file()
        tuned = use.operation.tuned_as
        if file is None or not use.is_missed or not is_tunable(tuned):
            return
        with self._lock:
            is_new = (file, tuned) not in self._written
            self._written.add((file, tuned))
        if is_new:
            _append(tuned, file)

    def of(self, operation: Operation, *, packs_weight: bool) -> KernelUse | None:
        """The kernel of an operation that this process has loaded; None if it has loaded none."""
        with self._lock:
            return self._uses.get((operation, packs_weight))

    def every(self) -> tuple[KernelUse, ...]:
        """All kernels, in the order in which they were first used."""
        with self._lock:
            return tuple(self._uses.values())

    def clear(self) -> None:
        """Forget all kernels; what was written stays written."""
        with self._lock:
            self._uses.clear()
            self._written.clear()


def is_tunable(operation: Operation) -> bool:
    """Whether it is an operation of workloads, or has one in it; other programs that connect regions are not."""
    return KINDS.get(operation.tuned_as.kind) is type(operation.tuned_as)


def _append(operation: Operation, file: Path) -> None:
    from dispatch_profiler.workloads import WorkloadEntry, append_workload  # few programs collect

    try:
        append_workload([WorkloadEntry(operation, origin=_ORIGIN)], file)
    except OSError as error:
        _log.warning("BOO_MISSES: %s cannot be written: %s", file, error.strerror)


USES = SESSION.keep("uses", KernelUses())


#: An operation, and whether its kernel may pack the weight.
UsedKernel = tuple[Operation, bool]


def summary_of(kernels: Iterable[UsedKernel], left_to_torch: int = 0) -> str:
    """Where the kernels of a graph come from, and what to do next, in one line; programs that connect kernels do not count.

    `20 regions: 12 exact entry, 6 predicted, 2 left to torch; 4 operations to tune (...)`
    """
    every = [kernel for kernel in kernels if is_tunable(kernel[0])]
    uses = [USES.of(operation, packs_weight=packs_weight) for operation, packs_weight in every]
    origins = Counter(use.origin.value for use in uses if use is not None)
    counts = [f"{origins[each.value]} {each.value}" for each in KernelOrigin if origins[each.value]]
    counts += [f"{left_to_torch} left to torch"] if left_to_torch else []
    missed = len({use.operation.tuned_as for use in uses if use is not None and use.is_missed})
    following = "dispatch-profiler explain says why"
    if missed:
        following = (
            f"{counted(missed, 'operation')} to tune (dispatch-profiler explain, dispatch_profiler.misses())"
        )
    elif every:
        following = "nothing is left to tune"
    regions = counted(len(every) + left_to_torch, "region")
    return f"{regions}: {', '.join(counts)}; {following}" if counts else f"{regions}; {following}"


def misses() -> Workload:
    """The operations that this process launches without an entry of a library that was tuned for them, for `tune`.

    An operation counts once. Of a model that was compiled before this process, kernels are known once they are launched.
    """
    from dispatch_profiler.workloads import Workload, WorkloadEntry

    missed: Iterable[Operation] = (each.operation.tuned_as for each in USES.every() if each.is_missed)
    tunable = [each for each in dict.fromkeys(missed) if is_tunable(each)]
    return Workload(tuple(WorkloadEntry(each, origin=_ORIGIN) for each in tunable))
