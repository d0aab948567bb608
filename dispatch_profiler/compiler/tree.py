"""A generated tree -> vmfbs beside the sources; compiles only modules that are not up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler._base import TRUST, BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.compiler.cache import Cache
from dispatch_profiler.compiler.request import build_key, build_request, origin_of
from dispatch_profiler.compiler.source.functions import reproducer
from dispatch_profiler.compiler.workers.cluster import Cluster, Warn
from dispatch_profiler.dispatches import (
    Artifact,
    DispatchEntry,
    Manifest,
    ModuleEntry,
    OperationEntry,
    Selection,
    State,
    Tree,
    fold_journal,
    note_result,
)
from dispatch_profiler.dispatches.tree import Purpose
from dispatch_profiler.errors import TargetError, UsageError, reason_of
from dispatch_profiler.files.regular import read_bounded, remove_leftovers, sha256, write_atomic
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, parse_target

#: Maximum bytes of a source or vmfb.
_LARGEST_FILE = 2**32


@dataclass(frozen=True)
class CompileOptions:
    """How to compile a tree.

    `target` defaults to the tree's target, `repeat` to `repeat_count`. For `executor`, `workers`, `cluster` and `cores`
    see `pool.Executor`; `seconds` and `memory_bytes` limit one dispatch. `force` also compiles
    dispatches that are up to date; `retry` also compiles dispatches that exceeded the time limit, crashed or
    lacked a package. Dispatches that lacked memory, processes or disk space are always compiled again.
    `reproducers` writes each dispatch that does not compile to its own file. With `trust`, functions that
    this package did not render are compiled, whatever they do.
    """

    selection: Selection = Selection()
    target: Target | None = None
    flags: tuple[str, ...] = ()
    executor: str = "threads"
    workers: int = 1
    cluster: Cluster | None = None
    force: bool = False
    retry: bool = False
    reproducers: bool = False
    trust: bool = False
    repeat: int | None = None
    seconds: float = 120.0
    memory_bytes: int | None = None
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Task:
    """One module of one operation: what to build, and which of its dispatches were requested."""

    entry: OperationEntry
    module: str
    target: Target
    request: BuildRequest
    key: str
    requested: frozenset[str]


@dataclass(frozen=True)
class Progress:
    """A finished module. `entries` are its requested dispatches with their new state."""

    operation: Operation
    module: str
    entries: tuple[DispatchEntry, ...]
    #: True if it was up to date and nothing was compiled.
    kept: bool
    #: True if it was taken from the cache.
    cached: bool = False
    #: Requested dispatches of the modules that are being compiled at the same time.
    in_flight: int = 0


def _requested_modules(manifest: Manifest, selection: Selection) -> dict[tuple[Operation, str], set[str]]:
    """(operation, module) -> names of the selected dispatches in it."""
    requested: dict[tuple[Operation, str], set[str]] = {}
    for entry, d in manifest.choose(selection):
        requested.setdefault((entry.operation, d.dispatch.configuration.module), set()).add(d.dispatch.name)
    return requested


def count_dispatches(manifest: Manifest, selection: Selection) -> int:
    """The number of dispatches that `compile_tree` will report. Raises SelectionError."""
    return sum(map(len, _requested_modules(manifest, selection).values()))


def plan_tasks(manifest: Manifest, compiler: Compiler, options: CompileOptions) -> list[Task]:
    """Every module that holds a selected dispatch, up to date or not.

    Raises SelectionError and TargetError. A source that cannot be read is the verdict of its dispatches.
    """
    entries = {entry.operation: entry for entry in manifest.entries}
    return [
        _task(manifest.tree, entries[operation], module, frozenset(names), compiler, options)
        for (operation, module), names in _requested_modules(manifest, options.selection).items()
    ]


def _task(
    tree: Tree,
    entry: OperationEntry,
    module: str,
    requested: frozenset[str],
    compiler: Compiler,
    options: CompileOptions,
) -> Task:
    made = next((m for m in entry.modules if m.name == module), None)
    target = options.target or parse_target(entry.target if made is None else made.target)
    if target.family != parse_target(entry.target).family:
        raise TargetError(
            f"{entry.operation.name} was generated for {entry.target}, not for {target.name}",
            hint=f"run generator.py --target={target.name}, or leave --target out",
        )
    members = [d for d in entry.dispatches if d.dispatch.configuration.module == module]
    # Keep dispatches in the module that were compiled before, even if they are not requested now.
    kept = [d for d in members if d.dispatch.name in requested or d.state is not State.GENERATED]
    wanted = tuple(d.dispatch for d in kept)
    source, unreadable = _source(tree.source_of(members[0].dispatch))
    request = build_request(source, wanted, target, flags=options.flags, repeat=options.repeat)
    if unreadable:
        request = replace(request, rejected=tuple((d.name, unreadable) for d in wanted))
    key = build_key(request, target, compiler)
    return Task(entry, module, target, request, key, requested)


def _source(path: Path) -> tuple[str, str]:
    """(text of a generated file, reason why it cannot be read): one of them is empty."""
    try:
        return read_bounded(path, _LARGEST_FILE).decode(), ""
    except UsageError as error:
        return "", f"{error.message}: run generator.py again"
    except UnicodeDecodeError as error:
        return "", f"cannot read {path}: {reason_of(error)}: run generator.py again"


def is_current(tree: Tree, task: Task) -> bool:
    """Whether the vmfbs of this module have its key and are undamaged."""
    entry = next((m for m in task.entry.modules if m.name == task.module), None)
    if entry is None or entry.key != task.key:
        return False
    purposes: tuple[tuple[Purpose, Artifact | None], ...] = (
        ("verify", entry.verify),
        ("profile", entry.profile),
    )
    return all(
        artifact is None or artifact_of(tree.vmfb(task.entry.operation, task.module, purpose)) == artifact
        for purpose, artifact in purposes
    )


def artifact_of(path: Path) -> Artifact | None:
    """Hash and size of a file; None if it cannot be read."""
    try:
        data = read_bounded(path, _LARGEST_FILE)
    except UsageError:
        return None
    return Artifact(sha256(data), len(data))


def compile_tree(
    manifest: Manifest,
    compiler: Compiler,
    options: CompileOptions,
    cache: Cache | None = None,
    warn: Warn = lambda message: None,
) -> Iterator[Progress]:
    """Compile the selected dispatches that are not up to date; yields a Progress for each module.

    The manifest has all finished modules even if the caller stops or is interrupted. `warn` is called with
    a message if other machines can use the cluster.
    """
    tree = manifest.tree
    open_tasks = []
    with _Results(tree, compiler.revision, keep_reproducers=options.reproducers) as results:
        for task in plan_tasks(manifest, compiler, options):
            entries = _requested(task, task.entry)
            is_wanted = options.force or _tries_again(entries, options)
            if not is_wanted and is_current(tree, task):
                yield Progress(task.entry.operation, task.module, entries, kept=True)
            elif not is_wanted and cache is not None and (built := cache.get(task.key, options.seconds)):
                entry = results.add(task, built)
                yield Progress(task.entry.operation, task.module, _requested(task, entry), False, cached=True)
            else:
                open_tasks.append(task)
        for task, built, in_flight in _compile(open_tasks, compiler, options, warn):
            if cache is not None:
                cache.put(task.key, built, origin=origin_of(task.target, compiler))
            requested = _requested(task, results.add(task, built))
            yield Progress(task.entry.operation, task.module, requested, kept=False, in_flight=in_flight)


def _tries_again(entries: Sequence[DispatchEntry], options: CompileOptions) -> bool:
    """Whether a requested dispatch failed, and may not fail with these options."""
    failed = [each for each in entries if each.is_transient]
    if options.trust and any(TRUST in each.reason for each in failed):
        return True
    return bool(failed) and (options.retry or any(each.is_tried_again for each in failed))


def _compile(
    open_tasks: Sequence[Task], compiler: Compiler, options: CompileOptions, warn: Warn
) -> Iterator[tuple[Task, Built, int]]:
    """Yield each task with its result, and the number of requested dispatches that are being compiled."""
    if not open_tasks:
        return
    # joblib is slow to import, and a run on a finished sweep compiles nothing.
    from dispatch_profiler.compiler.workers.pool import BuildPool, Executor

    order = representative(len(open_tasks))
    requests = {at: replace(open_tasks[at].request, is_from_file=not options.trust) for at in order}
    workers = min(options.workers, len(requests))
    executor = Executor(options.executor, workers, options.cluster, options.cores)
    limits = WorkerLimits(options.seconds, options.memory_bytes)
    with BuildPool[int](compiler, executor, limits, warn) as pool:
        sizes = (len(open_tasks[i].requested) for i in order)
        in_flight = sum(islice(sizes, executor.workers))
        for index, built in pool.results(requests):
            in_flight += next(sizes, 0) - len(open_tasks[index].requested)
            yield open_tasks[index], built, in_flight


def representative(count: int) -> list[int]:
    """The numbers below `count`, ordered so that the first few are spread evenly over the range.

    They follow multiples of the golden ratio modulo 1: `representative(5)` -> [0, 2, 4, 1, 3]
    """
    golden = (5**0.5 - 1) / 2
    return sorted(range(count), key=lambda i: i * golden % 1)


def _requested(task: Task, entry: OperationEntry) -> tuple[DispatchEntry, ...]:
    return tuple(d for d in entry.dispatches if d.dispatch.name in task.requested)


class _Results(Closing):
    """Writes vmfbs and records their outcomes in a journal, which the manifest takes over at the end."""

    def __init__(self, tree: Tree, revision: str, *, keep_reproducers: bool) -> None:
        self._tree = tree
        self._revision = revision
        self._keep_reproducers = keep_reproducers

    def add(self, task: Task, built: Built) -> OperationEntry:
        """Write the result of `task`. Returns the manifest's new entry for this module."""
        operation = task.entry.operation
        remove_leftovers(self._tree.operation(operation))
        try:
            verify, profile = self._write_all(task, built)
            key = task.key
        except IsADirectoryError as error:
            reason = f"cannot write {error.filename2 or error.filename}: it is a directory"
            failed = BuildOutcome(State.NOT_COMPILED, reason)
            built = replace(built, outcomes=dict.fromkeys(built.outcomes, failed))
            verify = profile = None
            key = ""  # so that the next run tries again
        module = ModuleEntry(
            name=task.module,
            key=key,
            repeat=task.request.repeat,
            compiler=self._revision,
            target=task.target.name,
            verify=verify,
            profile=profile,
            flags=task.request.flags,
        )
        part = _part(task, built, module)
        note_result(self._tree, part)
        return part

    def _write_all(self, task: Task, built: Built) -> tuple[Artifact | None, Artifact | None]:
        """Write everything that was built of a module; returns its two vmfbs' hashes and sizes."""
        operation = task.entry.operation
        # It stays if the compiler printed nothing: then it is empty.
        write_atomic(self._tree.compiler_output(operation, task.module), built.diagnostics)
        self._update_reproducers(task, built)
        return (
            self._write(self._tree.vmfb(operation, task.module, "verify"), built.verify),
            self._write(self._tree.vmfb(operation, task.module, "profile"), built.profile),
        )

    def _write(self, path: Path, data: bytes) -> Artifact | None:
        if not data:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return None
        write_atomic(path, data)
        return Artifact(sha256(data), len(data))

    def _update_reproducers(self, task: Task, built: Built) -> None:
        """Write a reproducer of each dispatch that does not compile, if requested; remove obsolete reproducers."""
        for name, outcome in built.outcomes.items():
            path = self._tree.reproducer(task.entry.operation, name)
            if outcome.state is not State.NOT_COMPILED:
                path.unlink(missing_ok=True)
            elif self._keep_reproducers:
                write_atomic(path, reproducer(task.request, name, outcome.reason))

    def close(self) -> None:
        fold_journal(self._tree)


def _part(task: Task, built: Built, module: ModuleEntry) -> OperationEntry:
    """The entry of one operation with only the module that was built and its dispatches."""
    dispatches = tuple(
        replace(
            d,
            state=outcome.state,
            reason=outcome.reason,
            applied=outcome.applied,
            is_transient=outcome.is_transient,
        )
        for d in task.entry.dispatches
        if (outcome := built.outcomes.get(d.dispatch.name)) is not None
    )
    return replace(task.entry, dispatches=dispatches, modules=(module,))
