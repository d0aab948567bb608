"""Where a search starts: the compiler's choice, the fastest known form, what launches use, and winners of similar operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from dispatch_profiler.configurations import (
    KINDS,
    Configuration,
    Default,
    rejection_reason,
    shipped_configurations,
)
from dispatch_profiler.library import Library
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.library.tuned import SimilarEntries
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, fastest_form, likely_kernels, ranked_amx, untuned_kernels

#: Winners of similar shapes that a library contributes.
_NEIGHBOURS = 4


def baselines(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """The configurations that every search evaluates first: the compiler's choice, and the fastest untuned form."""
    both = Default(), fastest_form(operation, target)
    return tuple(each for each in both if each is not None)


def seeds(
    operation: Operation, target: Target, library: Library | None = None, *, packed_weights: bool = False
) -> tuple[Configuration, ...]:
    """Valid configurations that are likely to be fast, the likeliest first.

    Winners of `library`, for the operation and for similar shapes, in turns with the kernel that launches use without an
    entry and the target's shipped list, then the suggestions of each kind's rules; or, with `packed_weights` and if the
    operation has `known_kernels`, in turns with these, then the suggestions of other kinds, then the list. In the second
    case, winners for very different numbers of threads are left out. The list with its splits comes last. With `packed_weights`, suggestions pack the weight, and each
    other configuration that can do so is preceded by its variant with a packed weight.
    """
    shipped = [
        each.configuration for each in shipped_configurations(target.shipped_list) if each.is_for(operation)
    ]
    split = (each.split(slices) for slices in operation.predefined_splits for each in shipped)
    fastest = known_kernels(operation, target) if packed_weights else ()
    winners = _winners(operation, target, library, packed_weights=packed_weights, any_threads=not fastest)
    kinds = {type(each) for each in fastest}
    ruled = [
        each
        for kind in KINDS.values()
        if kind not in kinds
        for each in kind.likely(operation, target.limits, packed_weights=packed_weights)
    ]
    launched = itertools.islice(untuned_kernels(operation, target), 1)
    known = [*fastest, *ruled, *shipped] if fastest else [*launched, *shipped, *ruled]
    likely = list(dict.fromkeys([*_in_turns(winners, known), *filter(None, split)]))
    if packed_weights:
        both = ((each.with_packed_weight(operation), each) for each in likely)
        likely = list(dict.fromkeys(filter(None, itertools.chain.from_iterable(both))))
    return tuple(each for each in likely if rejection_reason(each, operation, target.limits) is None)


def known_kernels(operation: Operation, target: Target) -> tuple[Configuration, ...]:
    """Kernels that pack the weight, whose speed rules know, the likeliest first; empty if rules know none."""
    return (*ranked_amx(operation, target, packs_weight=True), *likely_kernels(operation, target))


def _in_turns(first: Sequence[Configuration], second: Sequence[Configuration]) -> Iterator[Configuration]:
    """One of each while both last: what was measured elsewhere may be slow here."""
    pairs = itertools.zip_longest(first, second)
    return filter(None, itertools.chain.from_iterable(pairs))


def _winners(
    operation: Operation,
    target: Target,
    library: Library | None,
    *,
    packed_weights: bool,
    any_threads: bool,
) -> list[Configuration]:
    """Winners of `library` for the operation, then for similar shapes.

    Unless `any_threads`, only of entries that divide their work for about as many threads as there are here.
    """
    if library is None:
        return []
    here = Hardware.here(target)
    entries = [
        entry
        for entry in library.readable()
        if entry.family == target.family
        and here.runs(entry.hardware)
        and (any_threads or not here.shares_otherwise(entry.hardware))
        and (packed_weights or not entry.packs_weight)
    ]
    similar = itertools.islice(SimilarEntries(entries).of(operation), _NEIGHBOURS)
    own = [entry for entry in entries if entry.operation == operation]
    return [entry.dispatch.configuration for entry in (*own, *similar)]
