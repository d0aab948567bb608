"""Entries of a library -> the kernels that can be exported, and why others cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dispatch_profiler.compiler import Compiler, compiler_for
from dispatch_profiler.configurations import AmxMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.library.entry import Entry, Hardware, best_for
from dispatch_profiler.library.library import Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.targets import CpuTarget, Target, parse_target

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: Flags of IREE's micro-kernels begin with it.
_UKERNELS = "--iree-llvmcpu-enable-ukernels"


@dataclass(frozen=True)
class ExportedKernel:
    """The kernel of an entry: `dispatch`, compiled for `target` with `flags` in addition to the usual ones.

    `name` tells the two kernels of an operation apart: a kernel that takes a packed weight ends in `_packed`.
    """

    name: str
    dispatch: Dispatch
    target: Target
    flags: tuple[str, ...]

    @classmethod
    def of(cls, dispatch: Dispatch, target: Target, flags: tuple[str, ...] = ()) -> ExportedKernel:
        """The kernel of a dispatch, under its name."""
        name = dispatch.operation.name
        is_packed = dispatch.configuration.packs_weight
        return cls(f"{name}_packed" if is_packed else name, dispatch, target, flags)

    @property
    def operation_name(self) -> str:
        return self.dispatch.operation.name

    @property
    def compiler(self) -> Compiler:
        return compiler_for(self.target)


#: The name of an operation, and why its entry is not exported.
LeftOut = tuple[str, str]


def exported_kernels(
    entries: Sequence[Entry], *, as_c: bool
) -> tuple[tuple[ExportedKernel, ...], tuple[LeftOut, ...]]:
    """The kernels of `entries` for this machine, and the entries that have none, each with one sentence why.

    Of several entries of one operation and purpose, the one for the most similar hardware counts. With `as_c`, kernels
    are for C: other limits apply.
    """
    kernels: list[ExportedKernel] = []
    left_out: list[LeftOut] = []
    for target_name, of_target in _by_target(entries).items():
        try:
            target = parse_target(target_name)
        except DispatchProfilerError as error:
            left_out += [(each.operation.name, str(error)) for each in of_target]
            continue
        here = Hardware.here(target)
        best = best_for(of_target, here)
        known = {each.purpose for each in best}
        left_out += [
            (each.operation.name, _of_another_cpu(each, here))
            for each in of_target
            if each.purpose not in known
        ]
        for entry in best:
            kernel = _exported(entry, target, here)
            reason = kernel if isinstance(kernel, str) else as_c and reason_against_c(kernel)
            if isinstance(kernel, str) or reason:
                left_out.append((entry.operation.name, str(reason)))
            else:
                kernels.append(kernel)
    return tuple(kernels), tuple(dict.fromkeys(left_out))


def _by_target(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for each in entries:
        groups.setdefault(each.provenance.target, []).append(each)
    return groups


def _of_another_cpu(entry: Entry, here: Hardware) -> str:
    return (
        f"its kernel is for CPUs of the level {entry.hardware.cpu}, but this machine has {here.cpu}: "
        "export it on such a machine"
    )


def _exported(entry: Entry, target: Target, here: Hardware) -> ExportedKernel | str:
    """The kernel of an entry, or the reason why this machine does not compile it."""
    if entry.sizes is not None:
        return (
            f"its kernel is for {entry.sizes.text}, and exports are for one size: tune the size that you call"
        )
    # The lookup judges the entry's compiler, CPU features and validity, as for every other use.
    alone = TunedConfigurations(
        Library([entry]),
        target,
        compiler_for(target).revision,
        packed_weights=entry.packs_weight,
        hardware=here,
    )
    found = alone.of(entry.operation)
    if found.dispatch is None:
        return found.problem
    return ExportedKernel.of(entry.dispatch, target, entry.extra_flags)


def export_format(entry: Entry) -> str:
    """The format of `library export` that has the code of an entry: `c`, or `vmfb` for code that C cannot call.

    Empty for an entry for several sizes, whose code is not exported.
    """
    if entry.sizes is not None:
        return ""
    kernel = ExportedKernel.of(entry.dispatch, parse_target(entry.provenance.target), entry.extra_flags)
    return "vmfb" if reason_against_c(kernel) else "c"


def reason_against_c(kernel: ExportedKernel) -> str:
    """Why a kernel cannot be called from C; empty if it may be."""
    configuration = kernel.dispatch.configuration
    flags = (*configuration.flags, *kernel.flags)
    if not isinstance(kernel.target, CpuTarget):
        return f"it is for {kernel.target.name}, and C exports are for CPUs: use --format=vmfb"
    if isinstance(configuration, AmxMicrokernel):
        return "AMX kernels need a permission that IREE's callers ask Linux for: use --format=vmfb"
    if any(each.startswith(_UKERNELS) for each in flags):
        return "IREE's micro-kernels ask its runtime for the CPU's features: use --format=vmfb"
    if not _IDENTIFIER.fullmatch(kernel.name):
        return "its name cannot be a name in C"
    return ""
