"""A generated tree -> vmfbs beside the sources, doing only what is left to do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache as cached_function
from pathlib import Path

from dispatch_profiler import __version__
from dispatch_profiler.compiler._base import Built, Compiler, ModuleJob
from dispatch_profiler.compiler.cache import Cache
from dispatch_profiler.compiler.pool import BuildPool
from dispatch_profiler.errors import TargetError, TreeError
from dispatch_profiler.files import sha256, write_atomic
from dispatch_profiler.generator import (
    Artifact,
    DispatchEntry,
    Manifest,
    ModuleEntry,
    OperationEntry,
    Selection,
    State,
    Tree,
    update_manifest,
)
from dispatch_profiler.generator.tree import Purpose
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, parse_target

#: The profile vmfb repeats a dispatch until one call does about this much work ...
_FLOPS_PER_CALL = 2e9
#: ... but never more often than the original did.
_MOST_REPEATS = 100
#: Seconds between two writes of the manifest while results come in.
_SAVE_EVERY = 1.0


def repeat_count(operation: Operation) -> int:
    """How often the profile vmfb does each dispatch: 1 for the largest, 100 for the smallest."""
    return max(1, min(_MOST_REPEATS, round(_FLOPS_PER_CALL / max(1, operation.flops))))


@dataclass(frozen=True)
class CompileOptions:
    """How to compile a tree.

    `target` None means what the tree was generated for; `repeat` None means `repeat_count`;
    `seconds` is the time limit of one dispatch.
    """

    selection: Selection = Selection()
    target: Target | None = None
    flags: tuple[str, ...] = ()
    workers: int = 1
    force: bool = False
    repeat: int | None = None
    seconds: float = 120.0
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Task:
    """One module of one operation: what to build, and the dispatches of it that were asked for."""

    entry: OperationEntry
    module: str
    target: Target
    job: ModuleJob
    key: str
    asked: frozenset[str]


@dataclass(frozen=True)
class Progress:
    """One module has been dealt with. `entries` are the asked dispatches with their new state."""

    operation: Operation
    module: str
    entries: tuple[DispatchEntry, ...]
    #: True if it was up to date and nothing was compiled.
    kept: bool
    #: True if it was compiled before, for this tree or another, and taken from the cache.
    cached: bool = False


def _asked_modules(manifest: Manifest, selection: Selection) -> dict[tuple[Operation, str], set[str]]:
    """(operation, module) -> names of the selected dispatches in it."""
    chosen = selection.choose(
        manifest.dispatches(), lambda pair: pair[0].operation.kind, lambda pair: pair[1].dispatch.name
    )
    asked: dict[tuple[Operation, str], set[str]] = {}
    for entry, d in chosen:
        asked.setdefault((entry.operation, d.dispatch.configuration.module), set()).add(d.dispatch.name)
    return asked


def count_modules(manifest: Manifest, selection: Selection) -> int:
    """How many modules `compile_tree` will report on. Raises SelectionError."""
    return len(_asked_modules(manifest, selection))


def plan_tasks(manifest: Manifest, compiler: Compiler, options: CompileOptions) -> list[Task]:
    """Every module that holds a selected dispatch, up to date or not.

    Raises SelectionError, TargetError, and TreeError if a source is missing.
    """
    entries = {entry.operation: entry for entry in manifest.entries}
    revision = compiler.revision
    return [
        _task(manifest.tree, entries[operation], module, frozenset(names), revision, options)
        for (operation, module), names in _asked_modules(manifest, options.selection).items()
    ]


def _task(
    tree: Tree,
    entry: OperationEntry,
    module: str,
    asked: frozenset[str],
    revision: str,
    options: CompileOptions,
) -> Task:
    target = options.target or parse_target(entry.target)
    if target.family != parse_target(entry.target).family:
        raise TargetError(
            f"{entry.operation.name} was generated for {entry.target}, not for {target.name}",
            hint=f"run generator.py --target={target.name}, or leave --target out",
        )
    members = [d for d in entry.dispatches if d.dispatch.configuration.module == module]
    # What was compiled before stays in the module, whoever is asked for now.
    wanted = tuple(d.dispatch for d in members if d.dispatch.name in asked or d.state is not State.GENERATED)
    flags = (*target.compile_flags, *wanted[0].configuration.flags, *options.flags)
    repeat = options.repeat or repeat_count(entry.operation)
    source = _read(tree.source(entry.operation))
    job = ModuleJob(source, wanted, flags, repeat)
    fingerprint = [__version__, _code_version(), revision, target.fingerprint, *flags, str(repeat), source]
    key = sha256("\0".join([*fingerprint, *(d.name for d in wanted)]).encode())
    return Task(entry, module, target, job, key, asked)


@cached_function
def _code_version() -> str:
    """Hash of our own sources that decide what comes out of a build."""
    package = Path(__file__).parent.parent
    files = sorted([*(package / "compiler").glob("*.py"), *(package / "configurations").glob("*.py")])
    return sha256(b"".join(file.read_bytes() for file in files))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TreeError(f"cannot read {path}: {error}", hint="run generator.py again") from error


def is_current(tree: Tree, task: Task) -> bool:
    """Are the vmfbs of this module those that its key would give, whole and undamaged?"""
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
        data = path.read_bytes()
    except OSError:
        return None
    return Artifact(sha256(data), len(data))


def compile_tree(
    manifest: Manifest, compiler: Compiler, options: CompileOptions, cache: Cache | None = None
) -> Iterator[Progress]:
    """Compile what is selected and not up to date; yields a Progress for each module.

    What was finished is in the manifest even if the caller stops or is interrupted.
    """
    tree = manifest.tree
    open_tasks = []
    with _Results(tree) as results:
        for task in plan_tasks(manifest, compiler, options):
            if not options.force and is_current(tree, task):
                yield Progress(task.entry.operation, task.module, _asked(task, task.entry), kept=True)
            elif cache is not None and not options.force and (built := cache.get(task.key)):
                entry = results.add(task, built, compiler.revision)
                yield Progress(task.entry.operation, task.module, _asked(task, entry), False, cached=True)
            else:
                open_tasks.append(task)
        yield from _compile(open_tasks, results, compiler, options, cache)


def _compile(
    open_tasks: list[Task],
    results: _Results,
    compiler: Compiler,
    options: CompileOptions,
    cache: Cache | None,
) -> Iterator[Progress]:
    if not open_tasks:
        return
    compiler.check_flags(open_tasks[0].job.flags)
    revision = compiler.revision
    workers = min(options.workers, len(open_tasks))
    with BuildPool[int](compiler, workers, options.seconds, options.memory_bytes) as pool:
        for index, built in pool.results((i, task.job) for i, task in enumerate(open_tasks)):
            task = open_tasks[index]
            if cache is not None:
                cache.put(task.key, built)
            entry = results.add(task, built, revision)
            yield Progress(task.entry.operation, task.module, _asked(task, entry), kept=False)


def _asked(task: Task, entry: OperationEntry) -> tuple[DispatchEntry, ...]:
    return tuple(d for d in entry.dispatches if d.dispatch.name in task.asked)


class _Results:
    """Writes vmfbs at once and the manifest every second and at the end."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._changed: dict[Operation, OperationEntry] = {}
        self._saved = time.monotonic()
        self._said: dict[tuple[Operation, str], str] = {}

    def add(self, task: Task, built: Built, revision: str) -> OperationEntry:
        operation = task.entry.operation
        self._write_diagnostics(operation, task.module, built.diagnostics)
        module = ModuleEntry(
            name=task.module,
            key=task.key,
            repeat=task.job.repeat,
            compiler=revision,
            verify=self._write(self._tree.vmfb(operation, task.module, "verify"), built.verify),
            profile=self._write(self._tree.vmfb(operation, task.module, "profile"), built.profile),
        )
        entry = _updated(self._changed.get(operation, task.entry), task, built, module)
        self._changed[operation] = entry
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self._save()
        return entry

    def _write(self, path: Path, data: bytes) -> Artifact | None:
        if not data:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return None
        write_atomic(path, data)
        return Artifact(sha256(data), len(data))

    def _write_diagnostics(self, operation: Operation, module: str, text: str) -> None:
        self._said[operation, module] = text
        said = [t for (op, _), t in self._said.items() if op == operation and t]
        write_atomic(self._tree.compiler_output(operation), "\n".join(said))

    def _save(self) -> None:
        update_manifest(self._tree, self._changed.values())
        self._saved = time.monotonic()

    def __enter__(self) -> _Results:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._changed:
            self._save()


def _updated(entry: OperationEntry, task: Task, built: Built, module: ModuleEntry) -> OperationEntry:
    outcomes = built.outcomes
    dispatches = tuple(
        replace(d, state=outcome.state, reason=outcome.reason, applied=outcome.applied)
        if (outcome := outcomes.get(d.dispatch.name)) is not None
        else d
        for d in entry.dispatches
    )
    others = tuple(m for m in entry.modules if m.name != module.name)
    return replace(entry, target=task.target.name, dispatches=dispatches, modules=(*others, module))
