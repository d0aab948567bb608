"""The tuned configuration of each operation of a tree, from a library, or the reason why it has none."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.configurations import Tuned, needed_features, rejection_reason
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.library.entry import Entry, Hardware, best_for, software_text
from dispatch_profiler.library.library import Library, is_shipped
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import Target, missing_features


@dataclass(frozen=True)
class TunedLookup:
    """The result of looking up an operation in a library: a dispatch, or None.

    `problem` is the reason why the operation's own entry is not used; empty without such a reason.
    `is_foreign`: that entry is for another target or compiler; `family` is the family of its target.
    `shares_otherwise`: the entry that is used divides the work among a very different number of threads. An entry for
    several `sizes` has the dispatch of the largest one.
    """

    operation: Operation
    dispatch: Dispatch | None = None
    problem: str = ""
    is_foreign: bool = False
    family: str = ""
    shares_otherwise: bool = False
    sizes: SizeRange | None = None

    @property
    def tuned_from(self) -> str:
        """The operation whose entry is used instead; empty if the operation's own entry is used."""
        configuration = None if self.dispatch is None else self.dispatch.configuration
        return configuration.tuned_from if isinstance(configuration, Tuned) else ""


@dataclass(frozen=True)
class TunedConfigurations:
    """The configurations of `library` for `target`, if they were measured with the compiler of `revision`.

    With `ignores_epilogues`, an operation without a usable entry gets the entry of the same operation with another epilogue
    or none; with `uses_nearest`, also the entry of the nearest shape for which it is valid. With `packed_weights`, weights
    are constants: entries that pack them are used, and preferred. Of several entries of an operation, the entry for the
    most similar `hardware` counts.
    """

    library: Library
    target: Target
    revision: str
    uses_nearest: bool = False
    packed_weights: bool = False
    ignores_epilogues: bool = False
    hardware: Hardware = Hardware()

    def of(self, operation: Operation) -> TunedLookup:
        """The tuned dispatch of `operation`, or the reason why it has none."""
        problem, is_foreign, family = "", False, ""
        try:
            known = operation.tuned_as
            entry = self.library.find(known, packed_weights=self.packed_weights, hardware=self.hardware)
        except UsageError as error:
            entry, problem = None, error.message
        if entry is not None:
            problem = self.foreign_reason(entry)
            is_foreign, family = bool(problem), entry.family
            dispatch, invalid = self._dispatch(entry, operation)
            problem = problem or invalid
            if not problem:
                return TunedLookup(
                    operation,
                    self._packed_instead(entry) or dispatch,
                    shares_otherwise=self.hardware.shares_otherwise(entry.hardware),
                )
        for near in self._near(operation):
            dispatch, invalid = self._dispatch(near, operation)
            if not invalid:
                others = self.hardware.shares_otherwise(near.hardware)
                return TunedLookup(operation, dispatch, problem, is_foreign, family, others)
        return TunedLookup(operation, None, problem, is_foreign, family)

    def for_sizes(self, operation: Operation) -> TunedLookup:
        """The tuned dispatch for several sizes, of which `operation` has one, or the reason why there is none.

        An entry that divides the work for a very different number of threads is not used.
        """
        try:
            entry = self.library.find_for_sizes(operation, self.hardware)
        except UsageError as error:
            return TunedLookup(operation, problem=error.message)
        if entry is None:
            return TunedLookup(operation)
        foreign = self.foreign_reason(entry)
        dispatch, invalid = self._dispatch(entry, entry.operation)
        others = self.hardware.shares_otherwise(entry.hardware)
        problem = foreign or invalid or (f"it is for {entry.hardware.text}" if others else "")
        return TunedLookup(
            operation, None if problem else dispatch, problem, bool(foreign), entry.family, sizes=entry.sizes
        )

    def sizes_of(self, operation: Operation) -> tuple[SizeRange, ...]:
        """See `Library.sizes_of`; none if a file cannot be read, which `for_sizes` reports."""
        try:
            return self.library.sizes_of(operation)
        except UsageError:
            return ()

    def _packed_instead(self, entry: Entry) -> Dispatch | None:
        """The dispatch of an entry with another epilogue that packs the weight, if `entry` cannot pack it.

        None if an entry of the operation itself packs it: then `entry` was measured to be faster.
        """
        operation, configuration = entry.operation, entry.dispatch.configuration
        cannot_pack = not configuration.packs_weight and configuration.with_packed_weight(operation) is None
        if not (self.packed_weights and self.ignores_epilogues and cannot_pack):
            return None
        packed = [each for each in self._of_sums(operation.without_epilogue) if each.packs_weight]
        if any(each.operation == operation for each in packed):
            return None
        dispatches = (self._dispatch(each, operation)[0] for each in packed)
        return next((each for each in dispatches if each is not None), None)

    def _near(self, operation: Operation) -> Iterator[Entry]:
        """Entries of other operations that `operation` may use, the best first."""
        if self.ignores_epilogues:
            same = self._of_sums(operation.without_epilogue)
            yield from (each for each in same if each.operation != operation)
        if self.uses_nearest:
            yield from self._similar.of(operation)

    def _of_sums(self, sums: Operation) -> list[Entry]:
        """The usable entries of `sums` with any epilogue; first without an epilogue, then packed weights."""
        # Only entries with this prefix are parsed: the name of the epilogue is at the end.
        usable = self._usable(sums.name, sums.family)
        entries = [each for each in usable if each.operation.without_epilogue == sums]
        return sorted(entries, key=lambda each: (len(each.operation.name), not each.packs_weight))

    @cached_property
    def _similar(self) -> SimilarEntries:
        return SimilarEntries(self._usable())

    def _usable(self, prefix: str = "", family: str | None = None) -> tuple[Entry, ...]:
        """Entries for this target, compiler and hardware, without damaged ones; the arguments are as in `Library.readable`."""
        usable = (
            each
            for each in self.library.readable(prefix, family)
            if each.sizes is None
            and not self.foreign_reason(each)
            and (self.packed_weights or not each.packs_weight)
        )
        return best_for(usable, self.hardware)

    def problem_of(self, entry: Entry) -> str:
        """Why `entry` cannot be used for its operation; empty if it can."""
        return self.foreign_reason(entry) or self._dispatch(entry, entry.operation)[1]

    def foreign_reason(self, entry: Entry) -> str:
        if entry.family == self.target.family and entry.is_of_compiler(self.revision):
            return ""
        return f"measured for {software_text([entry.software])}"

    def _dispatch(self, entry: Entry, operation: Operation) -> tuple[Dispatch | None, str]:
        """The dispatch of an entry's configuration for `operation`, or the reason why it has no dispatch."""
        configuration = entry.dispatch.configuration
        near = "" if entry.operation == operation.tuned_as else entry.operation.name
        try:
            tuned = Tuned(configuration, entry.extra_flags, near)
            reason = self._features_reason(entry) or rejection_reason(tuned, operation, self.target.limits)
        except DispatchProfilerError as error:
            reason = str(error)
        return (None, f"{configuration.name}: {reason}") if reason else (Dispatch(operation, tuned), "")

    def _features_reason(self, entry: Entry) -> str | None:
        """Why the target may not execute the instructions that the flags of `entry` add; None if it can."""
        needed = needed_features(entry.extra_flags)
        if not needed or (entry.provenance.target == self.target.name and not self.target.host):
            return None  # tuned for the CPU that the target names
        if not self.target.host:
            return f"tuned with the CPU features {', '.join(needed)}, which {self.target.name} may lack"
        missing = missing_features(needed)
        return f"this CPU lacks {', '.join(missing)}, which it was tuned with" if missing else None


def prove_hint(library: str) -> str:
    """The hint for a library of another compiler; `library` is a folder or the name of a shipped library."""
    output = " -o FOLDER" if is_shipped(Path(library)) else ""
    command = f"dispatch-profiler library prove {shlex.quote(library)}{output}"
    return f"prove its entries again with this compiler: {command}"


def check_some_fit(
    lookups: Sequence[TunedLookup], targets: Sequence[Target], revision: str, library: str
) -> None:
    """Raise UsageError if entries were found in `library`, but all of them are for other targets or compilers."""
    foreign = [each for each in lookups if each.is_foreign]
    if foreign and not any(each.dispatch for each in lookups):
        names = ", ".join(dict.fromkeys(target.name for target in targets))
        families = {target.family for target in targets}
        is_upgrade = any(each.family in families for each in foreign)
        reasons = "; ".join(dict.fromkeys(each.problem for each in foreign))
        raise UsageError(
            f"the library is not for {names} with compiler {revision}: its entries were {reasons}",
            hint=prove_hint(library) if is_upgrade else "tune for this target",
        )


# -- similar operations ----------------------------------------------------------------------------

# The tuned operations that are the most similar to another operation.


#: The fields that similar operations share, and the numbers by which they may differ.
_Described = tuple[tuple[object, ...], tuple[int, ...]]


class SimilarEntries:
    """Finds the entries of similar shapes.

    Operations are similar if they have the same kind, element types, layouts, mode and epilogue; convolutions are both
    dense, both depthwise or both grouped. Their distance is the sum of |log2| of the ratios of all extents, strides and
    paddings (each plus 1).
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        groups: dict[tuple[object, ...], list[tuple[tuple[int, ...], Entry]]] = {}
        # In order of names, so that the order of equally distant entries is defined; packed weights first.
        for entry in sorted(entries, key=lambda each: (each.operation.name, not each.packs_weight)):
            common, extents = _described(entry.operation)
            groups.setdefault(common, []).append((extents, entry))
        self._entries = {common: [entry for _, entry in group] for common, group in groups.items()}
        self._points = {common: _logarithms([e for e, _ in group]) for common, group in groups.items()}

    def of(self, operation: Operation) -> Iterator[Entry]:
        """The entries of similar operations, without `operation` itself, the nearest first."""
        common, extents = _described(operation)
        if common in self._entries:
            entries = self._entries[common]
            distances = np.abs(self._points[common] - _logarithms([extents])).sum(axis=1)
            for at in np.argsort(distances, kind="stable"):
                if entries[at].operation != operation:
                    yield entries[at]


def _logarithms(rows: list[tuple[int, ...]]) -> np.ndarray:
    logarithms: np.ndarray = np.log2(np.array(rows, dtype=float) + 1.0)
    return logarithms


def _described(operation: Operation) -> _Described:
    """(fields that similar operations share, numbers by which they differ)."""
    parts = list(_parts("", operation.to_dict()))
    # Extents differ in value only: their names and number are shared.
    common = [(name, "extent" if _is_extent(value) else value) for name, value in parts]
    geometry = operation.convolution
    variant = "" if geometry is None else geometry.variant
    return (variant, *common), tuple(value for _, value in parts if _is_extent(value))


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The scalars in plain data, with their places: `("stride.0", 2)`."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _parts(f"{name}.{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _parts(f"{name}.{at}", each)
    else:
        yield name, value
