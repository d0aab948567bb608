"""What `tuned.py` measures of each operation: its defaults, its tuned configuration, and packed forms; compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import Cache, CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import (
    FORMS,
    Configuration,
    Default,
    Formed,
    Tuned,
    rejection_reason,
    shipped_configurations,
)
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.generator import Plan, emit
from dispatch_profiler.generator.emit import emit_added
from dispatch_profiler.library import Entry, Library
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import fastest_form, packed_microkernel, parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry

TARGET = parse_target("llvm-cpu")
#: Forms that are compared with the fastest known one.
USUAL_FORMS = ("permuted", "im2col")


@dataclass(frozen=True)
class Sides:
    """What is measured of one operation.

    `untuned` are candidates for the default, `tuned` is None without an entry, `packed` are candidates with a packed
    weight.
    """

    entry: WorkloadEntry
    untuned: tuple[Dispatch, ...]
    tuned: Dispatch | None
    packed: tuple[Dispatch, ...] = ()


def untuned(operation: Operation) -> tuple[Dispatch, ...]:
    """The operation as it is, and forms of it that may be the fastest, with tiles that the compiler chooses."""
    known = fastest_form(operation, TARGET)
    names = dict.fromkeys([*([known.form] if isinstance(known, Formed) else []), *USUAL_FORMS])
    every: list[Configuration] = [Default(), *map(Formed, names)]
    return tuple(
        Dispatch(operation, each) for each in every if each.invalid_reason(operation, TARGET.limits) is None
    )


def packed_of(
    operation: Operation, tuned: Dispatch | None, entry: Entry | None = None
) -> tuple[Dispatch, ...]:
    """Configurations that pack the weight: that of `entry`, the one that is the fastest by a rule, and forms.

    Forms have the tiles of the tuned configuration and of the shipped list. `entry` is the library's for constant
    weights.
    """
    found: list[Configuration] = [entry.dispatch.configuration] if entry is not None else []
    ruled = packed_microkernel(operation, TARGET)
    found += [Formed("permuted"), *([ruled] if ruled is not None else [])]
    if tuned is not None and isinstance(tuned.configuration, Tuned):
        inner = tuned.configuration.inner
        tiles = inner.inner if isinstance(inner, Formed) else inner
        found += [Formed(form, tiles) for form in FORMS if tiles.can_be_inner]
    found += [each.configuration for each in shipped_configurations("llvm-cpu")]
    packed = (each if each.packs_weight else each.with_packed_weight(operation) for each in found)
    kept = (
        each for each in packed if each is not None and not rejection_reason(each, operation, TARGET.limits)
    )
    return tuple(Dispatch(operation, each) for each in dict.fromkeys(kept))


def sides_of(workload: Workload, library: Library, revision: str, *, packed: bool) -> list[Sides]:
    """The sides of each operation. Without an entry, the tuned side is the fastest known form."""
    tuned = TunedConfigurations(library, TARGET, revision)
    found = []
    for entry in workload.entries:
        dispatch = tuned.of(entry.operation).dispatch
        form = fastest_form(entry.operation, TARGET)
        if dispatch is None and form is not None:
            dispatch = Dispatch(entry.operation, Tuned(form))
        if packed:
            # The default is needed only where there is nothing else.
            base = () if dispatch else untuned(entry.operation)
            own = library.find(entry.operation, packed_weights=True)
            found.append(Sides(entry, base, dispatch, packed_of(entry.operation, dispatch, own)))
        else:
            found.append(Sides(entry, untuned(entry.operation), dispatch))
    return found


def compiled(folder: Path, sides: Sequence[Sides]) -> Tree:
    """A compiled tree of all sides but the libraries."""
    tree = Tree(folder)
    generated = tuple((each.entry.operation, (*each.untuned, *each.packed)) for each in sides)
    list(emit(Plan(TARGET, generated), tree))
    emit_added(tree, {each.entry.operation: each.tuned for each in sides})
    list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(), Cache(user_cache())))
    return tree
